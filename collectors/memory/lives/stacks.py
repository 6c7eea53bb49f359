"""The Python stacks of allocations: read once the window is over, each kept once.

While the program trains only code objects and positions in them are gathered, in a third of a microsecond;
what it takes to name them (files, lines, functions) is done here.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zprof.collectors.memory.lives.log import Birth

#: Frames of a stack that are kept, the innermost first.
MOST_FRAMES = 24
_BATCH = 1000
_PACKAGE = Path(__file__).parents[3]  # as the interpreter names the files of this package
#: What watches and starts the program; the engine beside it is a program itself.
_OWN = (
    *(f"{_PACKAGE}/{part}" for part in ("collectors/", "integrations/", "cli/", "__main__.py")),
    "<frozen runpy>",
)
#: How torch gets from a module's call to its forward, and from an operator to a dispatch mode.
_INTERNAL = (
    ("torch/nn/modules/module.py", frozenset({"_call_impl", "_wrapped_call_impl", "inner"})),
    ("torch/_ops.py", frozenset({"__call__", "handler"})),
    ("torch/utils/_python_dispatch.py", None),
)

Frame = tuple[str, int, str]


class Stacks:
    """Numbers the stacks of births, and gives the table ``stack``."""

    def __init__(self) -> None:
        self._numbers: dict[Sequence[Frame], int] = {}
        self._of: dict[int, int] = {}

    def read(self, births: Iterable[Birth]) -> None:
        """Name the frames of all that was gathered, a part at a time: they are large while they are read."""
        gathered = [(birth.generation, birth.stack) for birth in births if birth.stack is not None]
        for begin in range(0, len(gathered), _BATCH):
            batch = gathered[begin : begin + _BATCH]
            named = torch._C._profiler.symbolize_tracebacks([stack for _, stack in batch])
            for (generation, _), frames in zip(batch, named, strict=True):
                kept = tuple(itertools.islice(program_frames(frames), MOST_FRAMES))
                if kept:
                    self._of[generation] = self._numbers.setdefault(kept, len(self._numbers))

    def of(self, generation: int) -> int | None:
        """The stack's number, where the allocation has one."""
        return self._of.get(generation)

    def table(self) -> dict[str, list[Any]]:
        """Table ``stack``: a row for each frame."""
        rows = [
            (number, depth, *frame)
            for frames, number in self._numbers.items()
            for depth, frame in enumerate(frames)
        ]
        names = ("stack", "depth", "file", "line", "function")
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def program_frames(frames: Iterable[Mapping[str, Any]]) -> Iterable[Frame]:
    """Frames (file, line, function) without those of the recorder and of torch's way to it."""
    for frame in frames:
        file, function = str(frame["filename"]), str(frame["name"])
        if not file.startswith(_OWN) and not _is_internal(file, function):
            yield file, int(frame["line"]), function


def _is_internal(file: str, function: str) -> bool:
    return any(file.endswith(end) and (names is None or function in names) for end, names in _INTERNAL)
