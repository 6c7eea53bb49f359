"""Find where in a training step an allocation was made, from its call stack.

A frame is recognized by its file (a path inside a package) and its function. The innermost recognized frame
decides, because an allocation belongs to the running code, not to its caller. Paths and functions are taken
from torch 2.8 to 2.13, DeepSpeed, Apex and bitsandbytes. Frames come from untrusted files and are only
compared.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from enum import IntEnum

import numpy as np

from zprof.analysis.memory.attribution.frames import (
    MAX_NAME,
    Frame,
    StackIndex,
    is_nccl_frame,
    is_python,
    is_workspace_frame,
)
from zprof.analysis.memory.tables import Bool, Int

_OPTIMIZER_PATHS = (
    "/torch/optim/",
    "/apex/optimizers/",
    "/bitsandbytes/optim/",
    "/deepspeed/ops/adam/",
    "/deepspeed/ops/lion/",
    "/deepspeed/ops/lamb/",
    "/transformer_engine/pytorch/optimizers/",
)
_NON_OPTIMIZER_FILES = ("/torch/optim/lr_scheduler.py", "/torch/optim/swa_utils.py")
_INIT_STATE = ("_init_group", "_init_state", "init_state", "state_init", "initialize_state")
_COLLECTIVE_FILES = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/_functional_collectives.py",
    "/torch/distributed/nn/functional.py",
    "/torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py",
    "/deepspeed/comm/comm.py",
    "/deepspeed/comm/torch.py",
)
_FSDP2 = "/torch/distributed/fsdp/_fully_shard/"
_FSDP1 = "/torch/distributed/fsdp/"
_GATHER = {
    _FSDP2 + "_fsdp_collectives.py": (
        "foreach_all_gather", "foreach_all_gather_copy_out", "all_gather_copy_in_cuda",
    ),
    _FSDP2 + "_fsdp_param.py": (
        "init_all_gather_outputs", "alloc_all_gather_outputs", "all_gather_inputs", "init_unsharded_param",
    ),
    _FSDP2 + "_fsdp_param_group.py": ("unshard", "wait_for_unshard"),
    _FSDP1 + "_flat_param.py": (
        "unshard", "pre_unshard", "_alloc_padded_unsharded_flat_param", "_all_gather_flat_param",
    ),
    "/reference_engine/flat_unit.py": ("gather", "gather_updated", "_resize"),
    "/deepspeed/runtime/zero/partition_parameters.py": (
        "all_gather_coalesced", "_all_gather_dtype", "_allgather_params", "_allgather_params_coalesced",
    ),
}  # fmt: skip
_REDUCE = {
    _FSDP2 + "_fsdp_collectives.py": ("foreach_reduce", "foreach_reduce_scatter_copy_in"),
    _FSDP2 + "_fsdp_param_group.py": ("post_backward",),
    _FSDP1 + "_runtime_utils.py": ("_reduce_grad", "_get_reduce_scatter_tensors", "_post_backward_hook"),
    "/reference_engine/gradients/unit_gradients.py": ("acquire", "take_bucket"),
    "/reference_engine/gradients/storage.py": ("allocate", "acquire", "take_bucket"),  # an older version
}
_SHARD = {
    _FSDP2 + "_fsdp_param.py": ("_init_sharded_param", "reset_sharded_param"),
    _FSDP2 + "_fsdp_init.py": ("_move_states_to_device",),
    _FSDP1 + "_flat_param.py": ("flatten_tensors", "_init_flat_param_and_metadata", "shard"),
    _FSDP1 + "_init_utils.py": ("_move_module_to_device", "_move_states_to_device"),
}
#: C++ frames: a bucket of DDP's reducer, a copy of a weight made by autocast, the thread of the backward.
_REDUCER = re.compile(r"c10d::Reducer::(?:initialize_buckets|rebuild_buckets)\b", re.ASCII)
_AUTOCAST = re.compile(r"at::autocast::cached_cast\b", re.ASCII)
_ENGINE = re.compile(r"torch::autograd::(?:Engine|python::PythonEngine)::", re.ASCII)
_BUCKET = {"/torch/nn/parallel/distributed.py": ("_ddp_init_helper", "_pre_forward", "main_hook")}
_CHECKPOINT = {"/torch/utils/checkpoint.py": ("recompute_fn", "unpack_hook", "backward")}
_BACKWARD = {
    "/torch/autograd/__init__.py": ("backward", "grad"),
    "/torch/autograd/graph.py": ("_engine_run_backward",),
    "/torch/_tensor.py": ("backward",),
    "/torch/_functorch/_aot_autograd/runtime_wrappers.py": ("backward", "_backward_impl"),
}
_SETUP = {
    "/torch/nn/modules/module.py": (
        "_apply", "to", "cuda", "to_empty", "convert", "register_buffer", "load_state_dict",
        "_load_from_state_dict",
    ),
    "/torch/nn/parameter.py": ("__new__", "materialize", "__deepcopy__"),
    "/transformers/modeling_utils.py": (
        "_load_state_dict_into_meta_model", "_load_pretrained_model", "load_shard_file", "_init_weights",
        "_initialize_missing_keys",
    ),
    "/accelerate/utils/modeling.py": ("set_module_tensor_to_device",),
    "/safetensors/torch.py": ("load_model",),
}  # fmt: skip
_SETUP_FUNCTIONS = ("__init__", "reset_parameters", "_reset_parameters", "init_weights", "_init_weights")
_CALL = {"/torch/nn/modules/module.py": ("_call_impl", "_wrapped_call_impl")}
#: The functions of torch's Optimizer that call the step of any optimizer.
_WRAPPER_FILE = "/torch/optim/optimizer.py"


class Origin(IntEnum):
    """Where in a training step an allocation was made.

    CONSTRUCTOR, FORWARD_NAME and BACKWARD_NAME are based on a function's name alone. BARE: no Python frame;
    OTHER: Python code of nobody that is known. OPTIMIZER_CALL: an optimizer's step that is known only because
    torch's wrapper called it.
    """

    OTHER = 0
    BARE = 1
    SETUP = 2
    CONSTRUCTOR = 3
    SHARD = 4
    FORWARD = 5
    FORWARD_NAME = 6
    BACKWARD = 7
    BACKWARD_NAME = 8
    RECOMPUTE = 9
    OPTIMIZER = 10
    OPTIMIZER_INIT = 11
    CLIP = 12
    GATHER = 13
    REDUCE = 14
    BUCKET = 15
    COLLECTIVE = 16
    WORKSPACE = 17
    CAST = 18
    OPTIMIZER_CALL = 19


def _is_optimizer(frame: Frame) -> bool:
    known = any(path in frame.file for path in _OPTIMIZER_PATHS)
    return known and not frame.file.endswith(_NON_OPTIMIZER_FILES)


def _is_collective(frame: Frame) -> bool:
    return frame.file.endswith(_COLLECTIVE_FILES)


def _is_setup(frame: Frame) -> bool:
    if frame.file.endswith("/torch/nn/init.py"):
        return True
    built_in = "/torch/nn/modules/" in frame.file and frame.function in _SETUP_FUNCTIONS
    return built_in or _match_table(_SETUP)(frame)


def _match_native(pattern: re.Pattern[str]) -> Callable[[Frame], bool]:
    return lambda frame: not is_python(frame) and pattern.search(frame.function[:MAX_NAME]) is not None


def _match_name(name: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.function == name and is_python(frame)


def _match_table(table: Mapping[str, tuple[str, ...]]) -> Callable[[Frame], bool]:
    def matches(frame: Frame) -> bool:
        return any(frame.file.endswith(path) and frame.function in names for path, names in table.items())

    return matches


_RECOGNIZERS: tuple[tuple[Origin, Callable[[Frame], bool]], ...] = (
    (Origin.WORKSPACE, is_workspace_frame),
    (Origin.COLLECTIVE, is_nccl_frame),
    (Origin.OPTIMIZER_INIT, lambda frame: _is_optimizer(frame) and frame.function in _INIT_STATE),
    (Origin.OPTIMIZER_CALL, lambda frame: frame.file.endswith(_WRAPPER_FILE)),
    (Origin.OPTIMIZER, _is_optimizer),
    (
        Origin.CLIP,
        lambda frame: frame.file.endswith(("/torch/nn/utils/clip_grad.py", "/torch/amp/grad_scaler.py")),
    ),
    (Origin.GATHER, _match_table(_GATHER)),
    (Origin.REDUCE, _match_table(_REDUCE)),
    (Origin.SHARD, _match_table(_SHARD)),
    (Origin.COLLECTIVE, _is_collective),
    (Origin.BUCKET, _match_native(_REDUCER)),
    (Origin.BUCKET, _match_table(_BUCKET)),
    (Origin.CAST, _match_native(_AUTOCAST)),
    (Origin.RECOMPUTE, _match_table(_CHECKPOINT)),
    (Origin.BACKWARD, _match_table(_BACKWARD)),
    (Origin.SETUP, _is_setup),
    (Origin.FORWARD, _match_table(_CALL)),
    (Origin.FORWARD_NAME, _match_name("forward")),
    (Origin.BACKWARD_NAME, _match_name("backward")),
    (Origin.CONSTRUCTOR, lambda frame: frame.function in _SETUP_FUNCTIONS and is_python(frame)),
    (Origin.BACKWARD, _match_native(_ENGINE)),
)


_NAME_ONLY_ORIGINS = (Origin.FORWARD_NAME, Origin.BACKWARD_NAME, Origin.CONSTRUCTOR)
_FORWARD_ORIGINS = (Origin.FORWARD, Origin.FORWARD_NAME, Origin.CAST)
_BACKWARD_ORIGINS = (Origin.RECOMPUTE, Origin.BACKWARD, Origin.BACKWARD_NAME)
_OPTIMIZER_ORIGINS = (Origin.OPTIMIZER, Origin.OPTIMIZER_INIT, Origin.OPTIMIZER_CALL)


def classify_stacks(stacks: StackIndex, numbers: Int) -> Int:
    """Return the origin of each of these stacks; BARE for a stack without frames."""
    python = np.array([is_python(frame) for frame in stacks.frames] or [False], dtype=bool)
    frame_origins = np.array([int(find_frame_origin(f)) for f in stacks.frames] or [0], dtype=np.int64)
    distinct, position = np.unique(numbers, return_inverse=True)
    origins = np.full(len(distinct), int(Origin.BARE), dtype=np.int64)
    for index in np.flatnonzero(stacks.is_known(distinct)).tolist():
        frames = stacks.get_frame_indices(int(distinct[index]))
        origins[index] = int(_find_stack_origin(frame_origins[frames], python[frames]))
    return origins[position.reshape(-1)]


def find_frame_origin(frame: Frame) -> Origin:
    """Return the origin of the first recognizer that matches the frame; OTHER if none does."""
    return next((origin for origin, matches in _RECOGNIZERS if matches(frame)), Origin.OTHER)


def _find_stack_origin(frame_origins: Int, python: Bool) -> Origin:
    """Return the origin of a stack from the origins of its frames, innermost first."""
    # The order of the frames with the engine's own after the Python that it called.
    # With ``stacks="all"`` torch puts the innermost Python frame where the C++ stack enters the interpreter,
    # and the other Python frames at the end, behind those of the engine's thread.
    engine = (frame_origins == Origin.BACKWARD) & ~python
    calls_python = engine.any() and bool(python[: int(np.argmax(engine))].any())
    order = np.argsort(engine, kind="stable") if calls_python else np.arange(len(frame_origins))
    in_call_order = frame_origins[order]
    known_origins = [Origin(code) for code in in_call_order.tolist() if code != Origin.OTHER]
    if not known_origins:
        return Origin.OTHER if python.any() else Origin.BARE
    first = known_origins[0]
    if first in _NAME_ONLY_ORIGINS:
        first = next((origin for origin in known_origins if origin not in _NAME_ONLY_ORIGINS), first)
    if first in _OPTIMIZER_ORIGINS:
        run = itertools.takewhile(
            _OPTIMIZER_ORIGINS.__contains__, known_origins[known_origins.index(first) :]
        )
        return Origin.OPTIMIZER_INIT if Origin.OPTIMIZER_INIT in run else first
    if first is Origin.BUCKET:
        recognized = int(np.flatnonzero(frame_origins != Origin.OTHER)[0])
        if python[:recognized].any():
            return Origin.OTHER  # the reducer allocates with no Python frame of its own
    if first in _FORWARD_ORIGINS and any(origin in _BACKWARD_ORIGINS for origin in known_origins):
        return Origin.RECOMPUTE
    return first
