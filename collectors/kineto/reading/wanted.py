"""Keeps the other arguments of the few rows that need them: collectives, and waits for devices."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.arguments import Arguments
from zprof.collectors.kineto.columns import ABSENT, Mask
from zprof.collectors.kineto.reading.events import NOT_DECODED, FewArguments
from zprof.collectors.kineto.reading.texts import Answers

_PREFIXES = ("c10d::", "gloo:", "nccl:", "record_param_comms", "symm_mem::")
_CATEGORY = "cuda_sync"
#: What a hostile file can make of them; decoded, a list takes twenty times its text.
_MOST_VALUE_BYTES, _MOST_BYTES = 64 << 10, 64 << 20
_FIELDS = tuple(field.name for field in msgspec.structs.fields(Arguments))
_TextAndCodes = tuple[list[str], npt.NDArray[np.int32]]


class Wanted:
    """``rows``: the arguments by row.  ``unkept``: rows some of whose arguments were beyond the bounds."""

    def __init__(self) -> None:
        self.rows: dict[int, Arguments] = {}
        self.unkept = 0
        self._kept_bytes = 0
        self._repeated: dict[str, str] = {}
        self._names = Answers(lambda name: name.startswith(_PREFIXES))
        self._categories = Answers(lambda category: category == _CATEGORY)

    def mask(self, names: _TextAndCodes, categories: _TextAndCodes, few: Sequence[FewArguments]) -> Mask:
        """The rows that need them; names and categories as texts and codes."""
        found = self._names.of(*names) | self._categories.of(*categories)
        for stated in ([each.collective for each in few], [each.group for each in few]):
            if stated.count(None) != len(stated):
                found[[row for row, each in enumerate(stated) if each is not None]] = True
        return found

    def keep(self, row: int, few: FewArguments) -> None:
        """Keep what a row has."""
        values, size, too_large = {}, 0, False
        for name in _FIELDS:
            value = getattr(few, name)
            if isinstance(value, str | msgspec.Raw):
                length = len(value) if isinstance(value, str) else len(memoryview(value))
                size += length
                too_large = too_large or length > _MOST_VALUE_BYTES
            values[name] = value
        if too_large or self._kept_bytes + size > _MOST_BYTES:
            self.unkept += 1
            return
        self._kept_bytes += size
        self.rows[row] = Arguments(**{name: self._kept(value) for name, value in values.items()})

    def _kept(self, value: Any) -> Any:
        """A plain value, each text once, or a decoded list; None for everything else."""
        if isinstance(value, str):
            return self._repeated.setdefault(value, value)
        if isinstance(value, msgspec.Raw):
            return _list(value)
        return value if isinstance(value, int | float) and value != ABSENT else None


def _list(text: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(text) if len(memoryview(text)) else None
    except NOT_DECODED:
        return None
