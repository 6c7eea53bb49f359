"""The origin of each call stack: what its innermost telling frame says, seen in what is around it.

Innermost first, because an allocation belongs to what runs, not to what called it: an optimizer's step that
is called below a function named ``forward`` is an optimizer's step.  The other way round, the model that an
optimizer's closure calls is a forward pass, if a module's call (not a name alone) says so.
"""

import itertools

import numpy as np
import pandas as pd

from zprof.analysis.memory.blocks.history import codes_of
from zprof.analysis.memory.blocks.naming.frames import (
    Origin,
    frame_of,
    is_nobodys,
    is_python,
    origin_of,
)
from zprof.analysis.memory.rank.lives import Bool, Int

_WEAK = (Origin.FORWARD_NAME, Origin.BACKWARD_NAME, Origin.CONSTRUCTOR)
_FORWARD = (Origin.FORWARD, Origin.FORWARD_NAME)
_BACKWARD = (Origin.RECOMPUTE, Origin.BACKWARD, Origin.BACKWARD_NAME)
_OPTIMIZER = (Origin.OPTIMIZER, Origin.OPTIMIZER_INIT)
_SHOWN_FRAMES = 30


class Stacks:
    """The table ``stack`` by number; a stack that is not in it has no origin and no frames."""

    def __init__(self, stack: pd.DataFrame) -> None:
        stack = stack.sort_values(["stack", "depth"], kind="stable")
        self._number: Int = np.asarray(stack["stack"].to_numpy(), dtype=np.int64)
        self._line: Int = np.asarray(stack["line"].to_numpy(), dtype=np.int64)
        self._file, self._files = codes_of(stack["file"])
        self._function, self._functions = codes_of(stack["function"])
        self._known: Int = np.unique(self._number)
        self._origins: Int = self._classify()

    def origins(self, stacks: Int) -> Int:
        """Origin of each block's stack; BARE where no frame was kept."""
        found = np.full(len(stacks), int(Origin.BARE), dtype=np.int64)
        if len(self._known):
            at = np.minimum(np.searchsorted(self._known, stacks), len(self._known) - 1)
            hit = self._known[at] == stacks
            found[hit] = self._origins[at[hit]]
        return found

    def shown(self, stack: int) -> tuple[str, ...]:
        """Return the innermost frames of a stack as text, without those that are nobody's code."""
        first = int(np.searchsorted(self._number, stack, side="left"))
        last = int(np.searchsorted(self._number, stack, side="right"))
        found: list[str] = []
        for row in range(first, last):
            file, function = self._files[self._file[row]], self._functions[self._function[row]]
            text = _shown(file, int(self._line[row]), function)
            if not is_nobodys(frame_of(file, function)) and found[-1:] != [text]:
                found.append(text)
            if len(found) == _SHOWN_FRAMES:
                break
        return tuple(found)

    def _classify(self) -> Int:
        """Each different frame is looked at once, then each stack."""
        pair = self._file * max(len(self._functions), 1) + self._function
        pairs, which = np.unique(pair, return_inverse=True)
        frames = [
            frame_of(self._files[code // len(self._functions)], self._functions[code % len(self._functions)])
            for code in pairs.tolist()
        ]
        python = np.array([is_python(frame) for frame in frames] or [False], dtype=bool)
        told = np.array([int(origin_of(frame)) for frame in frames] or [0], dtype=np.int64)
        which = which.reshape(-1)
        begins = np.searchsorted(self._number, self._known, side="left")
        ends = np.searchsorted(self._number, self._known, side="right")
        return np.array(
            [
                int(_origin(told[which[begin:end]], python[which[begin:end]]))
                for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            ],
            dtype=np.int64,
        )


def _shown(file: str, line: int, function: str) -> str:
    """One frame as text; of C++ the name says all, and its arguments nothing."""
    if is_python(frame_of(file, function)):
        return f"{file}:{line} {function}"
    name = function.replace("(anonymous namespace)::", "").partition("(")[0]
    return name if file in ("", "?", "??") else f"{file}:{line} {name}"


def _origin(told: Int, python: Bool) -> Origin:
    """The origin of a stack from what its frames tell, innermost first."""
    telling = [Origin(code) for code in told.tolist() if code != Origin.OTHER]
    if not telling:
        return Origin.OTHER if python.any() else Origin.BARE
    first = telling[0]
    if first in _WEAK:
        first = next((origin for origin in telling if origin not in _WEAK), first)
    if first in _OPTIMIZER:
        run = itertools.takewhile(_OPTIMIZER.__contains__, telling[telling.index(first) :])
        return Origin.OPTIMIZER_INIT if Origin.OPTIMIZER_INIT in run else first
    if first is Origin.BUCKET and told[np.argmax(python)] != Origin.BUCKET:
        return Origin.OTHER  # the reducer allocates with no Python frame of its own
    if first in _FORWARD and any(origin in _BACKWARD for origin in telling):
        return Origin.RECOMPUTE
    return first
