"""Find where in a training step an allocation was made, from its call stack.

A frame is recognized by its file (a path inside a package) and its function. The innermost recognized frame
decides, because an allocation belongs to the running code, not to its caller. Paths and functions are taken
from torch 2.8 to 2.13, DeepSpeed, Apex and bitsandbytes. Frames come from untrusted files and are only
compared.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pandas as pd

from zprof.analysis.memory.history import factorize_texts
from zprof.analysis.memory.tables import Bool, Int


class Origin(IntEnum):
    """Where in a training step an allocation was made.

    CONSTRUCTOR, FORWARD_NAME and BACKWARD_NAME are based on a function's name alone.
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


#: Longer C++ names are cut: the rest is template arguments, which do not matter.
_MAX_NAME = 400


@dataclass(frozen=True, slots=True)
class Frame:
    """A stack frame: ``file`` with forward slashes, ``function`` without its class."""

    file: str
    function: str


def make_frame(file: str, function: str) -> Frame:
    """Return a normalized frame from a recorded file and function."""
    name = function if "::" in function else function.rsplit(".", 1)[-1]
    return Frame("/" + file.replace("\\", "/").lstrip("/"), name)


def find_frame_origin(frame: Frame) -> Origin:
    """Return the origin of the first recognizer that matches the frame; OTHER if none does."""
    return next((origin for origin, matches in _RECOGNIZERS if matches(frame)), Origin.OTHER)


def is_python(frame: Frame) -> bool:
    """Return True for a Python frame; C++ frames have no such file."""
    return frame.file.endswith(".py") or frame.file.startswith("/<")


def is_internal_frame(frame: Frame) -> bool:
    """Return True for internals: allocator, unwinder, profiler, dispatcher, interpreter.

    C++ frames of operators, backward nodes, workspaces, NCCL and unknown libraries are not internals.
    """
    if is_python(frame):
        return frame.file.endswith(_INTERNAL_FILES)
    name = frame.function
    if _OPERATOR.match(name) or _is_workspace(frame) or _is_nccl(frame):
        return False
    return name in ("", "?", "??") or _INTERNAL_FUNCTION.match(name) is not None


#: C++ frames of torch: an operator as called, a node of the backward pass.
_OPERATOR = re.compile(r"at::_ops::\w+::call\b|torch::autograd::generated::\w+::apply\b", re.ASCII)
_INTERNAL_FUNCTION = re.compile(
    r"(?:[\w:*&<> ]{1,40}\s)?(?:torch|c10|at|std|caffe2|pybind11)::"
    r"|_?Py[A-Z_]|py(?:bind|eval)|_?_?(?:libc|clone|start|pthread|gthread)|_start$|main$|cfunction_|method_",
    re.ASCII,
)
_INTERNAL_FILES = (
    "/torch/nn/modules/module.py",
    "/torch/_compile.py",
    "/torch/_ops.py",
    "/torch/profiler/profiler.py",
)
#: cuBLAS, hipBLAS and cuDNN allocate workspaces from torch, once per thread and stream or per call.
_WORKSPACE = re.compile(
    r"cublas|hipblas|rocblas|BlasHandle|Blas(?:Lt)?Workspace|at::cuda::blas::"
    r"|(?:cudnn|miopen)\w*workspace|\bWorkspace::Workspace|run_conv_plan|generate_and_filter_plans",
    re.ASCII | re.IGNORECASE,
)
_NCCL = re.compile(r"(?:c10d::)?ProcessGroupNCCL::|ncclMemAlloc|c10d::ops::", re.ASCII)


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
    "/deepspeed/runtime/zero/partition_parameters.py": (
        "all_gather_coalesced", "_all_gather_dtype", "_allgather_params", "_allgather_params_coalesced",
    ),
}  # fmt: skip
_REDUCE = {
    _FSDP2 + "_fsdp_collectives.py": ("foreach_reduce", "foreach_reduce_scatter_copy_in"),
    _FSDP2 + "_fsdp_param_group.py": ("post_backward",),
    _FSDP1 + "_runtime_utils.py": ("_reduce_grad", "_get_reduce_scatter_tensors", "_post_backward_hook"),
}
_SHARD = {
    _FSDP2 + "_fsdp_param.py": ("_init_sharded_param", "reset_sharded_param"),
    _FSDP2 + "_fsdp_init.py": ("_move_states_to_device",),
    _FSDP1 + "_flat_param.py": ("flatten_tensors", "_init_flat_param_and_metadata", "shard"),
    _FSDP1 + "_init_utils.py": ("_move_module_to_device", "_move_states_to_device"),
}
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
}  # fmt: skip
_SETUP_FUNCTIONS = ("__init__", "reset_parameters", "_reset_parameters", "init_weights", "_init_weights")
_CALL = {"/torch/nn/modules/module.py": ("_call_impl", "_wrapped_call_impl")}


def _is_optimizer(frame: Frame) -> bool:
    known = any(path in frame.file for path in _OPTIMIZER_PATHS)
    return known and not frame.file.endswith(_NON_OPTIMIZER_FILES)


def _is_optimizer_init(frame: Frame) -> bool:
    return _is_optimizer(frame) and frame.function in _INIT_STATE


def _is_collective(frame: Frame) -> bool:
    return frame.file.endswith(_COLLECTIVE_FILES)


def _is_setup(frame: Frame) -> bool:
    if frame.file.endswith("/torch/nn/init.py"):
        return True
    built_in = "/torch/nn/modules/" in frame.file and frame.function in _SETUP_FUNCTIONS
    return built_in or _match_table(_SETUP)(frame)


def _is_constructor(frame: Frame) -> bool:
    return frame.function in _SETUP_FUNCTIONS and is_python(frame)


def _is_workspace(frame: Frame) -> bool:
    """Return True for a C++ frame of a library workspace; a Python function may have any name."""
    return not is_python(frame) and _WORKSPACE.search(frame.function[:_MAX_NAME]) is not None


def _is_nccl(frame: Frame) -> bool:
    return not is_python(frame) and _NCCL.search(frame.function[:_MAX_NAME]) is not None


def _is_clip(frame: Frame) -> bool:
    return frame.file.endswith(("/torch/nn/utils/clip_grad.py", "/torch/amp/grad_scaler.py"))


def _match_name(name: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.function == name and is_python(frame)


def _match_table(table: Mapping[str, tuple[str, ...]]) -> Callable[[Frame], bool]:
    def matches(frame: Frame) -> bool:
        return any(frame.file.endswith(path) and frame.function in names for path, names in table.items())

    return matches


_RECOGNIZERS: tuple[tuple[Origin, Callable[[Frame], bool]], ...] = (
    (Origin.WORKSPACE, _is_workspace),
    (Origin.COLLECTIVE, _is_nccl),
    (Origin.OPTIMIZER_INIT, _is_optimizer_init),
    (Origin.OPTIMIZER, _is_optimizer),
    (Origin.CLIP, _is_clip),
    (Origin.GATHER, _match_table(_GATHER)),
    (Origin.REDUCE, _match_table(_REDUCE)),
    (Origin.SHARD, _match_table(_SHARD)),
    (Origin.COLLECTIVE, _is_collective),
    (Origin.BUCKET, _match_table(_BUCKET)),
    (Origin.RECOMPUTE, _match_table(_CHECKPOINT)),
    (Origin.BACKWARD, _match_table(_BACKWARD)),
    (Origin.SETUP, _is_setup),
    (Origin.FORWARD, _match_table(_CALL)),
    (Origin.FORWARD_NAME, _match_name("forward")),
    (Origin.BACKWARD_NAME, _match_name("backward")),
    (Origin.CONSTRUCTOR, _is_constructor),
)


_NAME_ONLY_ORIGINS = (Origin.FORWARD_NAME, Origin.BACKWARD_NAME, Origin.CONSTRUCTOR)
_FORWARD_ORIGINS = (Origin.FORWARD, Origin.FORWARD_NAME)
_BACKWARD_ORIGINS = (Origin.RECOMPUTE, Origin.BACKWARD, Origin.BACKWARD_NAME)
_OPTIMIZER_ORIGINS = (Origin.OPTIMIZER, Origin.OPTIMIZER_INIT)
_MAX_FRAMES = 30


class Stacks:
    """Index of the ``stack`` table by stack number; a stack missing from it has no origin and no frames."""

    def __init__(self, stack: pd.DataFrame) -> None:
        stack = stack.sort_values(["stack", "depth"], kind="stable")
        self._number: Int = np.asarray(stack["stack"].to_numpy(), dtype=np.int64)
        self._line: Int = np.asarray(stack["line"].to_numpy(), dtype=np.int64)
        self._file, self._files = factorize_texts(stack["file"])
        self._function, self._functions = factorize_texts(stack["function"])
        self._known: Int = np.unique(self._number)
        self._origins: Int = self._classify()

    def origins(self, stacks: Int) -> Int:
        """Return the origin of each block's stack; BARE if no frame was kept."""
        origins = np.full(len(stacks), int(Origin.BARE), dtype=np.int64)
        if len(self._known):
            position = np.minimum(np.searchsorted(self._known, stacks), len(self._known) - 1)
            is_known = self._known[position] == stacks
            origins[is_known] = self._origins[position[is_known]]
        return origins

    def format_stack(self, stack: int) -> tuple[str, ...]:
        """Return the innermost frames of a stack as text, without internal frames."""
        first = int(np.searchsorted(self._number, stack, side="left"))
        last = int(np.searchsorted(self._number, stack, side="right"))
        lines: list[str] = []
        for row in range(first, last):
            file, function = self._files[self._file[row]], self._functions[self._function[row]]
            text = _format_frame(file, int(self._line[row]), function)
            if not is_internal_frame(make_frame(file, function)) and lines[-1:] != [text]:
                lines.append(text)
            if len(lines) == _MAX_FRAMES:
                break
        return tuple(lines)

    def _classify(self) -> Int:
        """Return the origin of each stack; each distinct frame is classified once."""
        pair = self._file * max(len(self._functions), 1) + self._function
        pairs, frame_index = np.unique(pair, return_inverse=True)
        frames = [
            make_frame(
                self._files[code // len(self._functions)], self._functions[code % len(self._functions)]
            )
            for code in pairs.tolist()
        ]
        python = np.array([is_python(frame) for frame in frames] or [False], dtype=bool)
        frame_origins = np.array([int(find_frame_origin(frame)) for frame in frames] or [0], dtype=np.int64)
        frame_index = frame_index.reshape(-1)
        begins = np.searchsorted(self._number, self._known, side="left")
        ends = np.searchsorted(self._number, self._known, side="right")
        return np.array(
            [
                int(_find_stack_origin(frame_origins[frame_index[begin:end]], python[frame_index[begin:end]]))
                for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            ],
            dtype=np.int64,
        )


def _format_frame(file: str, line: int, function: str) -> str:
    """Return one frame as text; a C++ frame is shown without its arguments."""
    if is_python(make_frame(file, function)):
        return f"{file}:{line} {function}"
    name = function.replace("(anonymous namespace)::", "").partition("(")[0]
    return name if file in ("", "?", "??") else f"{file}:{line} {name}"


def _find_stack_origin(frame_origins: Int, python: Bool) -> Origin:
    """Return the origin of a stack from the origins of its frames, innermost first."""
    known_origins = [Origin(code) for code in frame_origins.tolist() if code != Origin.OTHER]
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
    if first is Origin.BUCKET and frame_origins[np.argmax(python)] != Origin.BUCKET:
        return Origin.OTHER  # the reducer allocates with no Python frame of its own
    if first in _FORWARD_ORIGINS and any(origin in _BACKWARD_ORIGINS for origin in known_origins):
        return Origin.RECOMPUTE
    return first
