"""Read the call stacks of a history: which frames are somebody's code, and how a frame is written.

Frames of the allocator, the unwinder, the profiler, the dispatcher and the interpreter are nobody's code.
Frames come from untrusted files: they are compared and shown, nothing else.
"""

import re
from enum import IntEnum
from functools import cached_property

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.tables import Bool, Int
from zprof.analysis.user_code import CodeOwner, find_code_owner

MAX_FRAMES = 30
#: Longer C++ names are cut: the rest is template arguments, which do not matter.
MAX_NAME = 400
#: C++ frames of torch: an operator as called, a node of the backward pass.
_OPERATOR = re.compile(
    r"at::_ops::(?P<operator>\w+)::call\b"
    r"|torch::autograd::(?:generated::)?(?P<node>\w+Backward\w*|AccumulateGrad)::apply\b",
    re.ASCII,
)
#: Operators that only allocate for the operator that calls them.
_ALLOCATES = re.compile(r"(?:new_)?(?:empty|zeros|ones|full)\w*$|resize\w*$|scalar_tensor$", re.ASCII)
#: The outermost frame of the backward that says so: its threads have no Python frames.
_BACKWARD_THREAD = "torch::autograd::Engine::thread_main"
#: Overload of an operator, as in ``mul_Tensor``.
_OVERLOAD = re.compile(r"_[A-Z]\w*$", re.ASCII)
_AUTOCAST = "at::autocast::cached_cast"
_INTERNAL_FUNCTION = re.compile(
    r"(?:[\w:*&<> ]{1,40}\s)?(?:torch|c10|at|std|caffe2|pybind11)::"
    r"|_?Py[A-Z_]|py(?:bind|eval)|_?_?(?:libc|clone|start|pthread|gthread)|_start$|main$|cfunction_|method_"
    r"|execute_native_thread_routine",
    re.ASCII,
)
#: Sources of the Python interpreter, whatever its version and build folder.
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


class FrameKind(IntEnum):
    """Whose code a frame is.

    INTERNAL: allocator, unwinder, dispatcher, profiler, interpreter. MODULE_CALL: torch calls a module's
    forward. TORCH: Python code of torch and of Python itself. LIBRARY: other installed packages. USER: the
    user's own. OPERATOR: an operator or backward node in C++. FOREIGN: other C++.
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
    """Return a normalized frame from a recorded file and function."""
    name = function if "::" in function else function.rsplit(".", 1)[-1]
    return Frame("/" + file.replace("\\", "/").lstrip("/"), name)


def is_python(frame: Frame) -> bool:
    """Return True for a Python frame; C++ frames have no such file."""
    return frame.file.endswith(".py") or frame.file.startswith("/<")


def is_workspace_frame(frame: Frame) -> bool:
    """Return True for a C++ frame of a library workspace; a Python function may have any name."""
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
    """Index of the ``stack`` table by stack number; a stack missing from it has no frames."""

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
        """Return the positions in ``frames`` of a stack's frames, innermost first."""
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
        """Return the frame that a user would name for a stack; empty if it has no such frame.

        That is the innermost frame of the user's own code, unless a module of a library is called further
        in: then it is the forward of that module. Helpers of libraries and torch's own modules do not count.
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
        """Return the operator that allocated, or the function of a library that the user's code ended in."""
        native = self.find_native_operator(stack)
        if native:
            return native
        frames = ((row, kind) for row, kind in self._list_rows(stack) if kind in _PYTHON_KINDS.values())
        row, kind = next(frames, (-1, FrameKind.USER))
        return "" if kind is FrameKind.USER else self.frames[self._frame_index[row]].function

    def find_native_operator(self, stack: int) -> str:
        """Return the operator in C++, as ``exp`` or ``BmmBackward0``; empty if no frame names one.

        A node of the backward pass comes before the operators that it calls, and an operator before those
        that only allocate memory for it. A cast by autocast is marked as such.
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
