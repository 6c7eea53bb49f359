"""Keeps the other arguments of the few rows that need them: collectives, and waits for devices."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.arguments import Arguments
from zprof.collectors.kineto.reading.events import NOT_DECODED, FewArguments
from zprof.collectors.kineto.reading.texts import Answers

_PREFIXES = ("c10d::", "gloo:", "nccl:", "record_param_comms")
_CATEGORY = "cuda_sync"
#: What a hostile file can make of them; decoded, a list takes twenty times its text.
_MOST_EVENT_BYTES, _MOST_BYTES = 256 << 10, 64 << 20
_REPEATED = (
    "collective",
    "dtype",
    "group",
    "group_description",
    "group_ranks",
    "split_in",
    "split_out",
    "kind",
    "sync_kind",
)


class _Holder(msgspec.Struct):
    args: Arguments


_HOLDER = msgspec.json.Decoder(_Holder)


class Wanted:
    """``rows``: the arguments by row.  ``unkept``: rows whose arguments were beyond the bounds."""

    def __init__(self) -> None:
        self.rows: dict[int, Arguments] = {}
        self.unkept = 0
        self._kept_bytes = 0
        self._repeated: dict[str, str] = {}
        self._names = Answers(lambda name: name.startswith(_PREFIXES))
        self._categories = Answers(lambda category: category == _CATEGORY)

    def mask(
        self,
        names: tuple[list[str], npt.NDArray[np.int32]],
        categories: tuple[list[str], npt.NDArray[np.int32]],
        few: Sequence[FewArguments],
    ) -> npt.NDArray[np.bool_]:
        """The rows that need them; names and categories as texts and codes."""
        found = self._names.of(*names) | self._categories.of(*categories)
        collectives, groups = [each.collective for each in few], [each.group for each in few]
        for stated in (collectives, groups):
            if stated.count(None) != len(stated):
                found |= np.fromiter((each is not None for each in stated), np.bool_, len(stated))
        return found

    def keep(self, row: int, event: msgspec.Raw | bytes) -> None:
        """Take the arguments out of the text of an event."""
        size = len(memoryview(event))
        if size > _MOST_EVENT_BYTES or self._kept_bytes + size > _MOST_BYTES:
            self.unkept += 1
            return
        try:
            arguments = _HOLDER.decode(event).args
        except NOT_DECODED:
            return
        self._kept_bytes += size
        for field in _REPEATED:
            value = getattr(arguments, field)
            if isinstance(value, str):
                setattr(arguments, field, self._repeated.setdefault(value, value))
        self.rows[row] = arguments
