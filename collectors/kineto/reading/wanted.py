"""Keeps the other arguments of the few rows that need them: collectives, and waits for devices."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.arguments import Arguments
from zprof.collectors.kineto.columns import ABSENT, Int64s, Mask
from zprof.collectors.kineto.reading.events import NO_TEXT, NOT_DECODED, FewArguments
from zprof.collectors.kineto.reading.texts import Answers

_PREFIXES = ("c10d::", "gloo:", "nccl:", "record_param_comms", "symm_mem::")
_CATEGORY = "cuda_sync"
#: What a hostile file can make of them; decoded, a list takes twenty times its text.
_MOST_VALUE_BYTES, _MOST_BYTES = 64 << 10, 64 << 20
#: A rank in a list, and in the name of its group.
_RANK_BYTES, _MOST_RANKS = 32, 1 << 16
_NOT_KEPT = "external_id_2021"
_FIELDS = FewArguments.__struct_fields__
_TextAndCodes = tuple[list[str], npt.NDArray[np.int32]]


class Wanted:
    """``rows``: the arguments by row.  ``unkept``: rows some of whose arguments were beyond the bounds."""

    def __init__(self) -> None:
        self.rows: dict[int, Arguments] = {}
        self.unkept = 0
        self._kept_bytes = 0
        self._repeated: dict[str, str] = {}
        self._strided: set[tuple[int | str | None, ...]] = set()
        self._names = Answers(lambda name: name.startswith(_PREFIXES))
        self._categories = Answers(lambda category: category == _CATEGORY)

    def mask(
        self, names: _TextAndCodes, categories: _TextAndCodes, few: Sequence[Any], device: Int64s
    ) -> Mask:
        """The rows that need them; names and categories as texts and codes, and rows of device work."""
        found = self._names.of(*names) | self._categories.of(*categories)
        for row in device.tolist():
            if few[row].collective is not None or few[row].group is not None:
                found[row] = True
        return found

    def keep(self, row: int, few: FewArguments) -> None:
        """Keep what a row has."""
        stated = {
            name: value
            for name, value in zip(_FIELDS, msgspec.structs.astuple(few), strict=True)
            if value is not None and value is not NO_TEXT
        }
        stated.pop(_NOT_KEPT, None)
        sizes = [_size(value) for value in stated.values() if not isinstance(value, int)]
        size = sum(sizes) + self._bytes_of_stride(few)
        if max(sizes, default=0) > _MOST_VALUE_BYTES or self._kept_bytes + size > _MOST_BYTES:
            self.unkept += 1
            return
        self._kept_bytes += size
        if few.global_rank_stride is not None:
            self._strided.add(_strided_group(few))
        self.rows[row] = Arguments(**{name: self._kept(value) for name, value in stated.items()})

    def _bytes_of_stride(self, few: FewArguments) -> int:
        """What a few numbers become, once for each group: the list of its ranks."""
        size = few.group_size
        if few.global_rank_stride is None or not isinstance(size, int) or size <= 0:
            return 0
        return 0 if _strided_group(few) in self._strided else _RANK_BYTES * min(size, _MOST_RANKS)

    def _kept(self, value: Any) -> Any:
        """A plain value, each text once, or a decoded list; None for everything else."""
        if isinstance(value, str):
            return self._repeated.setdefault(value, value)
        if isinstance(value, msgspec.Raw):
            return _list(value)
        return value if isinstance(value, int | float) and value != ABSENT else None


def _strided_group(few: FewArguments) -> tuple[int | str | None, ...]:
    """Its names, and the numbers that its ranks are made of."""
    values = (few.group, few.group_id, few.group_description, few.first_global_rank, few.global_rank_stride)
    return tuple(each if isinstance(each, int | str) else None for each in (*values, few.group_size))


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(memoryview(value)) if isinstance(value, msgspec.Raw) else 0


def _list(text: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(text) if len(memoryview(text)) else None
    except NOT_DECODED:
        return None
