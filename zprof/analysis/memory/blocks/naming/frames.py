"""What one Python frame tells of an allocation below it.

A frame is told by its file (a path inside of a package) and its function; a word somewhere in a name tells
nothing: a program may call a function ``forward_and_step``.  Paths and functions are those of torch 2.8 to
2.13, DeepSpeed, Apex and bitsandbytes.  They come from files of strangers and are only compared.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class Origin(IntEnum):
    """Where in a training step an allocation was made.

    CONSTRUCTOR, FORWARD_NAME and BACKWARD_NAME are told by a function's name alone.
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


#: The template arguments of a C++ name come behind what it is called.
_LONGEST_NAME = 400


@dataclass(frozen=True, slots=True)
class Frame:
    """``file`` with forward slashes, ``function`` without its class."""

    file: str
    function: str


def frame_of(file: str, function: str) -> Frame:
    """A frame as the recorder wrote it."""
    name = function if "::" in function else function.rsplit(".", 1)[-1]
    return Frame("/" + file.replace("\\", "/").lstrip("/"), name)


def origin_of(frame: Frame) -> Origin:
    """The first of the tellers that knows the frame; OTHER where none does."""
    return next((origin for origin, knows in _TELLERS if knows(frame)), Origin.OTHER)


def is_python(frame: Frame) -> bool:
    """Whether a frame is one of Python; those of C++ have no such file."""
    return frame.file.endswith(".py") or frame.file.startswith("/<")


def is_nobodys(frame: Frame) -> bool:
    """Return whether a frame is plumbing: allocator, unwinder, profiler, dispatcher, interpreter.

    Of C++ the operators stay, the backward nodes, workspaces, NCCL, and what is of no library known here.
    """
    if is_python(frame):
        return frame.file.endswith(_PLUMBING_FILES)
    name = frame.function
    if _OPERATOR.match(name) or _workspace(frame) or _nccl(frame):
        return False
    return name in ("", "?", "??") or _PLUMBING.match(name) is not None


#: What C++ frames of torch say: an operator as called, a node of the backward pass.
_OPERATOR = re.compile(r"at::_ops::\w+::call\b|torch::autograd::generated::\w+::apply\b", re.ASCII)
_PLUMBING = re.compile(
    r"(?:[\w:*&<> ]{1,40}\s)?(?:torch|c10|at|std|caffe2|pybind11)::"
    r"|_?Py[A-Z_]|py(?:bind|eval)|_?_?(?:libc|clone|start|pthread|gthread)|_start$|main$|cfunction_|method_",
    re.ASCII,
)
_PLUMBING_FILES = (
    "/torch/nn/modules/module.py",
    "/torch/_compile.py",
    "/torch/_ops.py",
    "/torch/profiler/profiler.py",
)
#: cuBLAS, hipBLAS and cuDNN take scratch of torch's allocator: once a thread and stream, or for one call.
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
_NO_OPTIMIZER = ("/torch/optim/lr_scheduler.py", "/torch/optim/swa_utils.py")
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


def _optimizer(frame: Frame) -> bool:
    known = any(path in frame.file for path in _OPTIMIZER_PATHS)
    return known and not frame.file.endswith(_NO_OPTIMIZER)


def _optimizer_init(frame: Frame) -> bool:
    return _optimizer(frame) and frame.function in _INIT_STATE


def _collective(frame: Frame) -> bool:
    return frame.file.endswith(_COLLECTIVE_FILES)


def _setup(frame: Frame) -> bool:
    if frame.file.endswith("/torch/nn/init.py"):
        return True
    built_in = "/torch/nn/modules/" in frame.file and frame.function in _SETUP_FUNCTIONS
    return built_in or _listed(_SETUP)(frame)


def _constructor(frame: Frame) -> bool:
    return frame.function in _SETUP_FUNCTIONS and is_python(frame)


def _workspace(frame: Frame) -> bool:
    """Only C++ tells: a function of Python may be called anything."""
    return not is_python(frame) and _WORKSPACE.search(frame.function[:_LONGEST_NAME]) is not None


def _nccl(frame: Frame) -> bool:
    return not is_python(frame) and _NCCL.search(frame.function[:_LONGEST_NAME]) is not None


def _clip(frame: Frame) -> bool:
    return frame.file.endswith(("/torch/nn/utils/clip_grad.py", "/torch/amp/grad_scaler.py"))


def _called(name: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.function == name and is_python(frame)


def _listed(table: Mapping[str, tuple[str, ...]]) -> Callable[[Frame], bool]:
    def knows(frame: Frame) -> bool:
        return any(frame.file.endswith(path) and frame.function in names for path, names in table.items())

    return knows


_TELLERS: tuple[tuple[Origin, Callable[[Frame], bool]], ...] = (
    (Origin.WORKSPACE, _workspace),
    (Origin.COLLECTIVE, _nccl),
    (Origin.OPTIMIZER_INIT, _optimizer_init),
    (Origin.OPTIMIZER, _optimizer),
    (Origin.CLIP, _clip),
    (Origin.GATHER, _listed(_GATHER)),
    (Origin.REDUCE, _listed(_REDUCE)),
    (Origin.SHARD, _listed(_SHARD)),
    (Origin.COLLECTIVE, _collective),
    (Origin.BUCKET, _listed(_BUCKET)),
    (Origin.RECOMPUTE, _listed(_CHECKPOINT)),
    (Origin.BACKWARD, _listed(_BACKWARD)),
    (Origin.SETUP, _setup),
    (Origin.FORWARD, _listed(_CALL)),
    (Origin.FORWARD_NAME, _called("forward")),
    (Origin.BACKWARD_NAME, _called("backward")),
    (Origin.CONSTRUCTOR, _constructor),
)
