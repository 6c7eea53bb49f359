"""Number call stacks and store each once, by the identity of the list, of its frames, then by content."""

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import Any

import numpy as np

from zprof.collectors.read.snapshot.columns import (
    Budget,
    Integers,
    TextNumbers,
    clean_text,
    make_damaged_error,
)

_MAX_DEPTH = 1024
_MAX_LINE = 1 << 40


class StackTable:
    """Number stacks in the order of first use. The snapshot must outlive the table, which stores
    object ids.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._by_list: dict[int, int] = {}
        self._by_sample: dict[tuple[int, int, int, int], tuple[Sequence[object], int]] = {}
        self._by_identities: dict[tuple[int, ...], int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_identity: dict[int, int] = {}
        self._by_content: dict[tuple[str, int, str], int] = {}

    def numbers(self, lists: Sequence[object], where: str) -> Integers:
        """Return the stack number of each list of frames; -1 for an empty list.

        Raises:
            BadInput: an entry is not a frame.
        """
        identities = list(map(id, lists))
        known = self._by_list
        for identity, frames in dict(zip(identities, lists, strict=True)).items():
            if identity not in known:
                known[identity] = self._add_stack(frames, where)
        return np.fromiter(map(known.__getitem__, identities), dtype=np.int64, count=len(identities))

    def columns(self) -> dict[str, Any]:
        """Return the table ``stack``."""
        frames = list(self._by_content)
        stacks = list(self._by_frames)
        depths = np.array([len(stack) for stack in stacks], dtype=np.int64)
        frame_numbers = np.fromiter(chain.from_iterable(stacks), dtype=np.int64, count=int(depths.sum()))
        before = np.repeat(np.cumsum(depths) - depths, depths)
        files, functions = TextNumbers(), TextNumbers()
        file = np.array([files.number(frame[0]) for frame in frames], dtype=np.int32)
        function = np.array([functions.number(frame[2]) for frame in frames], dtype=np.int32)
        line = np.array([frame[1] for frame in frames], dtype=np.int64)
        return {
            "stack": np.repeat(np.arange(len(stacks), dtype=np.int64), depths),
            "depth": np.arange(len(frame_numbers), dtype=np.int64) - before,
            "file": files.column(file[frame_numbers]),
            "line": line[frame_numbers],
            "function": functions.column(function[frame_numbers]),
        }

    def _add_stack(self, frames: object, where: str) -> int:
        if frames is None:
            return -1
        if type(frames) is not list and type(frames) is not tuple:
            raise make_damaged_error(f"{where}: frames is {type(frames).__name__}, not a list")
        if not frames:
            return -1
        used_frames = frames[:_MAX_DEPTH] if len(frames) > _MAX_DEPTH else frames
        depth = len(used_frames)
        self._budget.spend(depth, f"frames of {where}")
        # Most lists have the same frames as an earlier one: comparing them is faster than hashing them.
        sample = (depth, id(used_frames[0]), id(used_frames[depth // 2]), id(used_frames[-1]))
        similar = self._by_sample.get(sample)
        if similar is not None and all(map(is_, used_frames, similar[0])):
            return similar[1]
        identities = tuple(map(id, used_frames))
        number = self._by_identities.get(identities)
        if number is None:
            known = self._by_identity
            try:
                key = tuple(map(known.__getitem__, identities))
            except KeyError:
                key = tuple([self._number_frame(frame, where) for frame in used_frames])
            number = self._by_frames.setdefault(key, len(self._by_frames))
            self._by_identities[identities] = number
        self._by_sample[sample] = (used_frames, number)
        return number

    def _number_frame(self, frame: object, where: str) -> int:
        if type(frame) is not dict:
            raise make_damaged_error(f"{where}: a frame is {type(frame).__name__}, not dict")
        file, line, name = frame.get("filename", "?"), frame.get("line", 0), frame.get("name", "?")
        if type(file) is not str or type(name) is not str or type(line) is not int:
            raise make_damaged_error(f"{where}: a frame without file, line and name")
        if not -_MAX_LINE < line < _MAX_LINE:
            raise make_damaged_error(f"{where}: a line number is out of range")
        content = (clean_text(file), line, clean_text(name))
        number = self._by_content.setdefault(content, len(self._by_content))
        self._by_identity[id(frame)] = number
        return number
