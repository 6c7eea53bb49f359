"""Read a history's call stacks: normalize frames, and find where in a step an allocation was made.

Frames of the allocator, the unwinder, the profiler, the dispatcher and the interpreter are hidden.

A frame is recognized by its file (a path inside a package) and its function. The innermost recognized frame
decides, because an allocation belongs to the running code, not to its caller. Paths and functions are those
of torch 2.8 to 2.13, DeepSpeed, Apex and bitsandbytes. Frames come from untrusted files and are only compared
and shown.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cached_property

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.tables import Bool, Int
from zprof.run.user_code import CodeOwner, find_code_owner

MAX_FRAMES = 30
#: Longer C++ names are cut; the rest is irrelevant template arguments.
MAX_NAME = 400
#: C++ frames of torch: a called operator, a node of the backward pass.
_OPERATOR = re.compile(
    r"at::_ops::(?P<operator>\w+)::call\b"
    r"|torch::autograd::(?:generated::)?(?P<node>\w+Backward\w*|AccumulateGrad)::apply\b",
    re.ASCII,
)
#: Operators that only allocate for the operator that calls them.
_ALLOCATES = re.compile(r"(?:new_)?(?:empty|zeros|ones|full)\w*$|resize\w*$|scalar_tensor$", re.ASCII)
#: The outermost frame that identifies the backward pass, whose threads have no Python frames.
_BACKWARD_THREAD = "torch::autograd::Engine::thread_main"
#: Operator overload, as in ``mul_Tensor``.
_OVERLOAD = re.compile(r"_[A-Z]\w*$", re.ASCII)
_AUTOCAST = "at::autocast::cached_cast"
_INTERNAL_FUNCTION = re.compile(
    r"(?:[\w:*&<> ]{1,40}\s)?(?:torch|c10|at|std|caffe2|pybind11)::"
    r"|_?Py[A-Z_]|py(?:bind|eval)|_?_?(?:libc|clone|start|pthread|gthread)|_start$|main$|cfunction_|method_"
    r"|execute_native_thread_routine",
    re.ASCII,
)
#: Source files of the Python interpreter, of any version and build folder.
_INTERPRETER_FILE = re.compile(r"/(?:Python|Objects|Modules|Include)/[\w/]+\.[ch]$", re.ASCII)
_INTERNAL_FILES = (
    "/torch/nn/modules/module.py",
    "/torch/_compile.py",
    "/torch/_ops.py",
    "/torch/_dynamo/eval_frame.py",
    "/torch/overrides.py",
    "/torch/profiler/profiler.py",
    "/torch/utils/_contextlib.py",
)
_MODULE_CALL = ("_call_impl", "_wrapped_call_impl")
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
#: C++ frames: a bucket of DDP's reducer, autocast's copy of a weight, the backward thread.
_REDUCER = re.compile(r"c10d::Reducer::(?:initialize_buckets|rebuild_buckets)\b", re.ASCII)
_CAST = re.compile(rf"{_AUTOCAST}\b", re.ASCII)
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
#: Functions of torch's Optimizer that call any optimizer's step.
_WRAPPER_FILE = "/torch/optim/optimizer.py"


class FrameKind(IntEnum):
    """Whose code a frame is.

    INTERNAL: allocator, unwinder, dispatcher, profiler, interpreter. MODULE_CALL: torch calling a module's
    forward. TORCH: Python code of torch and of Python itself. LIBRARY: other installed packages. USER: user
    code. OPERATOR: an operator or backward node in C++. FOREIGN: other C++.
    """

    INTERNAL = 0
    MODULE_CALL = 1
    TORCH = 2
    LIBRARY = 3
    USER = 4
    OPERATOR = 5
    FOREIGN = 6


_PYTHON_KINDS = {
    CodeOwner.TORCH: FrameKind.TORCH,
    CodeOwner.LIBRARY: FrameKind.LIBRARY,
    CodeOwner.USER: FrameKind.USER,
}


class Frame(Struct, frozen=True):
    """A stack frame: ``file`` with forward slashes, ``function`` without its class."""

    file: str
    function: str


def make_frame(file: str, function: str) -> Frame:
    """Make a normalized frame from a recorded file and function."""
    name = function if "::" in function else function.rsplit(".", 1)[-1]
    return Frame("/" + file.replace("\\", "/").lstrip("/"), name)


def is_python(frame: Frame) -> bool:
    """Return True for a Python frame; C++ frames have no such file."""
    return frame.file.endswith(".py") or frame.file.startswith("/<")


def is_workspace_frame(frame: Frame) -> bool:
    """Return True for a C++ frame that allocates a library workspace; a Python function may have any name."""
    return not is_python(frame) and _WORKSPACE.search(frame.function[:MAX_NAME]) is not None


def is_nccl_frame(frame: Frame) -> bool:
    """Return True for a C++ frame of NCCL or of torch's calls of it."""
    return not is_python(frame) and _NCCL.search(frame.function[:MAX_NAME]) is not None


def find_frame_kind(frame: Frame) -> FrameKind:
    """Return whose code a frame is."""
    if is_python(frame):
        if frame.file.endswith(_INTERNAL_FILES):
            return FrameKind.MODULE_CALL if frame.function in _MODULE_CALL else FrameKind.INTERNAL
        return _PYTHON_KINDS[find_code_owner(frame.file)]
    name = frame.function
    if _OPERATOR.match(name):
        return FrameKind.OPERATOR
    if is_workspace_frame(frame) or is_nccl_frame(frame) or name.startswith(_BACKWARD_THREAD):
        return FrameKind.FOREIGN
    internal = (
        name in ("", "?", "??") or _INTERNAL_FUNCTION.match(name) or _INTERPRETER_FILE.search(frame.file)
    )
    return FrameKind.INTERNAL if internal else FrameKind.FOREIGN


class StackIndex:
    """Index of the ``stack`` table by stack number; a stack missing from the table has no frames."""

    def __init__(self, stack: Columns) -> None:
        stack = stack.sort_by("stack", "depth")
        self._number: Int = stack.ints("stack")
        self._line: Int = stack.ints("line")
        files, functions = stack.texts("file"), stack.texts("function")
        self._file, self._files = files.codes, files.words
        self._function, self._functions = functions.codes, functions.words
        #: Numbers of the stacks with frames, sorted.
        self.numbers: Int = np.unique(self._number)
        pair = self._file * max(len(self._functions), 1) + self._function
        pairs, frame_index = np.unique(pair, return_inverse=True)
        #: Distinct frames, by file and function.
        self.frames: tuple[Frame, ...] = tuple(
            make_frame(
                self._files[code // len(self._functions)], self._functions[code % len(self._functions)]
            )
            for code in pairs.tolist()
        )
        self._frame_index: Int = frame_index.reshape(-1).astype(np.int64)

    def get_frame_indices(self, stack: int) -> Int:
        """Return a stack's frames as positions in ``frames``, innermost first."""
        begin, end = self._find_rows(stack)
        return self._frame_index[begin:end]

    @cached_property
    def _kinds(self) -> Int:
        """Kind of each distinct frame."""
        return np.array([int(find_frame_kind(frame)) for frame in self.frames], dtype=np.int64)

    def format_stack(self, stack: int) -> tuple[str, ...]:
        """Return the innermost frames of a stack as text, without internal frames."""
        return tuple(text for text, _ in self.list_frames(stack))[:MAX_FRAMES]

    def list_frames(self, stack: int) -> list[tuple[str, FrameKind]]:
        """Return the frames of a stack as text with their kinds, innermost first, without internal frames."""
        frames: list[tuple[str, FrameKind]] = []
        for row, kind in self._list_rows(stack):
            if kind not in (FrameKind.INTERNAL, FrameKind.MODULE_CALL):
                frame = (self._format_row(row), kind)
                frames += [frame] if frames[-1:] != [frame] else []
        return frames

    def find_user_frame(self, stack: int) -> str:
        """Return the frame most meaningful to the user; empty if there is none.

        That is the innermost frame of user code, or the forward of a library module called further in.
        Library helpers and torch's own modules do not count.
        """
        forward: int | None = None
        for row, kind in self._list_rows(stack):
            if kind is FrameKind.USER:
                return self._format_row(row)
            if kind is FrameKind.LIBRARY:
                forward = row
            elif kind is FrameKind.MODULE_CALL and forward is not None:
                break
        return "" if forward is None else self._format_row(forward)

    def find_operator(self, stack: int) -> str:
        """Return the allocating operator, or the library function called by the user's code."""
        native = self.find_native_operator(stack)
        if native:
            return native
        frames = ((row, kind) for row, kind in self._list_rows(stack) if kind in _PYTHON_KINDS.values())
        row, kind = next(frames, (-1, FrameKind.USER))
        return "" if kind is FrameKind.USER else self.frames[self._frame_index[row]].function

    def find_native_operator(self, stack: int) -> str:
        """Return the C++ operator, such as ``exp`` or ``BmmBackward0``; empty if no frame shows one.

        A backward node takes precedence over the operators it calls, and an operator over those that only
        allocate memory for it. A cast by autocast is marked as such.
        """
        operator, first, is_cast = "", "", False
        for row, _ in self._list_rows(stack):
            function = self.frames[self._frame_index[row]].function
            found = _OPERATOR.match(function)
            if found is None:
                is_cast = is_cast or function.startswith(_AUTOCAST)
                continue
            if found["node"]:
                return found["node"]
            name = _OVERLOAD.sub("", found["operator"])
            first = first or name
            if not operator and not _ALLOCATES.match(name):
                operator = name
        return f"{operator} by autocast" if operator and is_cast else operator or first

    def is_known(self, stacks: Int) -> Bool:
        """Mark the stacks that have frames."""
        return np.isin(stacks, self.numbers)

    def _find_rows(self, stack: int) -> tuple[int, int]:
        return (
            int(np.searchsorted(self._number, stack, side="left")),
            int(np.searchsorted(self._number, stack, side="right")),
        )

    def _list_rows(self, stack: int) -> list[tuple[int, FrameKind]]:
        """Return the rows of a stack's frames with their kinds, innermost first."""
        first, last = self._find_rows(stack)
        kinds = self._kinds[self._frame_index[first:last]].tolist()
        return [(row, FrameKind(kind)) for row, kind in zip(range(first, last), kinds, strict=True)]

    def _format_row(self, row: int) -> str:
        file, function = self._files[self._file[row]], self._functions[self._function[row]]
        if is_python(self.frames[self._frame_index[row]]):
            return f"{file}:{int(self._line[row])} {function}"
        name = function.replace("(anonymous namespace)::", "").partition("(")[0]
        return name if file in ("", "?", "??") else f"{file}:{int(self._line[row])} {name}"


class Origin(IntEnum):
    """Where in a training step an allocation was made.

    CONSTRUCTOR, FORWARD_NAME and BACKWARD_NAME are based on a function's name alone. BARE: no Python frame;
    OTHER: unrecognized Python code. OPTIMIZER_CALL: an optimizer step recognized only by torch's wrapper
    around it.
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
    (Origin.CAST, _match_native(_CAST)),
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
    """Return each stack's origin; BARE for a stack without frames."""
    python = np.array([is_python(frame) for frame in stacks.frames] or [False], dtype=bool)
    frame_origins = np.array([int(find_frame_origin(f)) for f in stacks.frames] or [0], dtype=np.int64)
    distinct, position = np.unique(numbers, return_inverse=True)
    origins = np.full(len(distinct), int(Origin.BARE), dtype=np.int64)
    for index in np.flatnonzero(stacks.is_known(distinct)).tolist():
        frames = stacks.get_frame_indices(int(distinct[index]))
        origins[index] = int(_find_stack_origin(frame_origins[frames], python[frames]))
    return origins[position.reshape(-1)]


def find_frame_origin(frame: Frame) -> Origin:
    """Return the origin given by the first recognizer that matches the frame; OTHER if none does."""
    return next((origin for origin, matches in _RECOGNIZERS if matches(frame)), Origin.OTHER)


def _find_stack_origin(frame_origins: Int, python: Bool) -> Origin:
    """Return a stack's origin, given its frames' origins, innermost first."""
    # Order the frames so that the engine's own come after the Python code it called. With ``stacks="all"``,
    # torch puts the innermost Python frame where the C++ stack enters the interpreter, and the other Python
    # frames at the end, after the frames of the engine's thread.
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
