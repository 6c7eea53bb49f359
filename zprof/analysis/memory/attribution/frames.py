"""Read the call stacks of a history: which frames are somebody's code, and how a frame is written.

Frames of the allocator, the unwinder, the profiler, the dispatcher and the interpreter are nobody's code.
Frames come from untrusted files: they are compared and shown, nothing else.
"""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.memory.history import factorize_texts
from zprof.analysis.memory.tables import Bool, Int

MAX_FRAMES = 30
#: Longer C++ names are cut: the rest is template arguments, which do not matter.
MAX_NAME = 400
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
#: Folders of installed packages: their frames are somebody's, but not the user's.
_INSTALLED = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python3")
#: cuBLAS, hipBLAS and cuDNN allocate workspaces from torch, once per thread and stream or per call.
_WORKSPACE = re.compile(
    r"cublas|hipblas|rocblas|BlasHandle|Blas(?:Lt)?Workspace|at::cuda::blas::"
    r"|(?:cudnn|miopen)\w*workspace|\bWorkspace::Workspace|run_conv_plan|generate_and_filter_plans",
    re.ASCII | re.IGNORECASE,
)
_NCCL = re.compile(r"(?:c10d::)?ProcessGroupNCCL::|ncclMemAlloc|c10d::ops::", re.ASCII)


@dataclass(frozen=True, slots=True)
class Frame:
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


def is_user_frame(frame: Frame) -> bool:
    """Return True for Python code that is neither of an installed package nor of Python itself."""
    return is_python(frame) and not any(folder in frame.file for folder in _INSTALLED)


def is_workspace_frame(frame: Frame) -> bool:
    """Return True for a C++ frame of a library workspace; a Python function may have any name."""
    return not is_python(frame) and _WORKSPACE.search(frame.function[:MAX_NAME]) is not None


def is_nccl_frame(frame: Frame) -> bool:
    """Return True for a C++ frame of NCCL or of torch's calls of it."""
    return not is_python(frame) and _NCCL.search(frame.function[:MAX_NAME]) is not None


def is_internal_frame(frame: Frame) -> bool:
    """Return True for internals: allocator, unwinder, profiler, dispatcher, interpreter.

    C++ frames of operators, backward nodes, workspaces, NCCL and unknown libraries are not internals.
    """
    if is_python(frame):
        return frame.file.endswith(_INTERNAL_FILES)
    name = frame.function
    if _OPERATOR.match(name) or is_workspace_frame(frame) or is_nccl_frame(frame):
        return False
    return name in ("", "?", "??") or _INTERNAL_FUNCTION.match(name) is not None


class Stacks:
    """Index of the ``stack`` table by stack number; a stack missing from it has no frames."""

    def __init__(self, stack: pd.DataFrame) -> None:
        stack = stack.sort_values(["stack", "depth"], kind="stable")
        self._number: Int = np.asarray(stack["stack"].to_numpy(), dtype=np.int64)
        self._line: Int = np.asarray(stack["line"].to_numpy(), dtype=np.int64)
        self._file, self._files = factorize_texts(stack["file"])
        self._function, self._functions = factorize_texts(stack["function"])
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
        indices: Int = self._frame_index[begin:end]
        return indices

    def format_stack(self, stack: int) -> tuple[str, ...]:
        """Return the innermost frames of a stack as text, without internal frames."""
        first, last = self._find_rows(stack)
        lines: list[str] = []
        for row in range(first, last):
            text = self._format_row(row)
            if not is_internal_frame(self.frames[self._frame_index[row]]) and lines[-1:] != [text]:
                lines.append(text)
            if len(lines) == MAX_FRAMES:
                break
        return tuple(lines)

    def find_user_frame(self, stack: int) -> str:
        """Return the innermost frame of the user's own code as text; empty if there is none."""
        first, last = self._find_rows(stack)
        rows = (row for row in range(first, last) if is_user_frame(self.frames[self._frame_index[row]]))
        return next((self._format_row(row) for row in rows), "")

    def is_known(self, stacks: Int) -> Bool:
        """Mark the stacks that have frames."""
        known: Bool = np.isin(stacks, self.numbers)
        return known

    def _find_rows(self, stack: int) -> tuple[int, int]:
        return (
            int(np.searchsorted(self._number, stack, side="left")),
            int(np.searchsorted(self._number, stack, side="right")),
        )

    def _format_row(self, row: int) -> str:
        file, function = self._files[self._file[row]], self._functions[self._function[row]]
        if is_python(self.frames[self._frame_index[row]]):
            return f"{file}:{int(self._line[row])} {function}"
        name = function.replace("(anonymous namespace)::", "").partition("(")[0]
        return name if file in ("", "?", "??") else f"{file}:{int(self._line[row])} {name}"
