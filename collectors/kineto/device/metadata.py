"""What the arguments of an event say of a collective: PyTorch's ``record_param_comms`` and its copies.

Seen from 2.2 on, first with ``Process Group ID`` instead of a name; ``Seq`` since 2026.  Lists stand as texts
("[0, 1]"), and long ones are cut short with dots: then they say nothing.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zprof.collectors.kineto.arguments import Arguments, number
from zprof.collectors.kineto.collectives.element_types import element_type
from zprof.collectors.kineto.collectives.names import kind_of
from zprof.model.collectives import CollectiveKind

_MOST_RANKS = 1 << 16
_MISSING = (None, "", ())
_LIST = re.compile(r"\[\s*(?:\d{1,15}(?:\s*,\s*\d{1,15})*)?\s*\]", re.ASCII)
_ROOTED = frozenset(
    {CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A collective as its launch describes it; None and empty where it does not.

    ``ranks`` are global, in the order of the group: a range where that is how they are stated, for each of
    thousands of collectives names each of thousands of ranks.  ``peer`` is global too.
    """

    kind: CollectiveKind | None = None
    dtype: str | None = None
    element_bytes: int | None = None
    elements: int | None = None
    group: str | None = None
    description: str = ""
    ranks: tuple[int, ...] | range = ()
    group_size: int | None = None
    sequence: int | None = None
    peer: int | None = None

    def completed(self, other: "Described") -> "Described":
        """With what another description of the same collective knows more."""
        more = {
            name: value
            for name in self.__slots__
            if getattr(self, name) in _MISSING and (value := getattr(other, name)) not in _MISSING
        }
        return replace(self, **more) if more else self


def described(arguments: Arguments) -> Described | None:
    """What an event's arguments say, or None where they are of no collective (a wait, an initialisation)."""
    kind = kind_of(arguments.collective)
    if kind is None:
        return None
    dtype, element_bytes = element_type(arguments.dtype) or (None, None)
    description = arguments.group_description
    ranks, size = _ranks(arguments), _size(arguments)
    return Described(
        kind=kind,
        dtype=dtype,
        element_bytes=element_bytes,
        elements=_elements(kind, arguments, len(ranks) or size),
        group=_text(arguments.group) or _text(arguments.group_id),
        description=description if isinstance(description, str) else "",
        ranks=ranks,
        group_size=size,
        sequence=_natural(arguments.sequence),
        peer=_peer(kind, arguments, ranks),
    )


def numbers_of(text: object) -> tuple[int, ...] | None:
    """``"[0, 1]"`` as numbers, or None where it is no such list, or cut short."""
    if isinstance(text, list):
        return tuple(text) if all(number(entry) is not None for entry in text) else None
    if not isinstance(text, str) or _LIST.fullmatch(text) is None:
        return None
    return tuple(int(found) for found in re.findall(r"\d+", text))


def _elements(kind: CollectiveKind, arguments: Arguments, size: int | None) -> int | None:
    """Elements of the full tensor: what is gathered, what is scattered, what this rank sends to all."""
    given, result = number(arguments.elements_in), number(arguments.elements_out)
    if kind is CollectiveKind.BARRIER:
        return 0
    if kind is CollectiveKind.ALL_TO_ALL:
        return given if given else _sum(numbers_of(arguments.split_in))
    known = [count for count in (given, result) if count is not None and count >= 0]
    if len(known) == 2 or kind not in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return max(known, default=None)
    part = given if kind is CollectiveKind.ALL_GATHER else result
    if part is None:
        return max(known, default=None)
    return part * size if size else None


def _sum(splits: tuple[int, ...] | None) -> int | None:
    return sum(splits) if splits else None


def _ranks(arguments: Arguments) -> tuple[int, ...] | range:
    listed = numbers_of(arguments.group_ranks)
    if listed:
        return listed if len(set(listed)) == len(listed) else ()
    first, stride = number(arguments.first_global_rank), number(arguments.global_rank_stride)
    size = _size(arguments)
    if first is None or stride is None or size is None or first < 0 or stride <= 0:
        return ()
    return range(first, first + stride * size, stride)


def _size(arguments: Arguments) -> int | None:
    size = number(arguments.group_size)
    return size if size is not None and 0 < size <= _MOST_RANKS else None


def _peer(kind: CollectiveKind, arguments: Arguments, ranks: Sequence[int]) -> int | None:
    """The other side, in global ranks; a root stands there as its place in the group."""
    if kind is CollectiveKind.SEND:
        return _natural(arguments.destination_rank)
    if kind is CollectiveKind.RECV:
        return _natural(arguments.source_rank)
    root = _natural(arguments.rank) if kind in _ROOTED else None
    return ranks[root] if root is not None and root < len(ranks) else None


def _natural(value: object) -> int | None:
    found = number(value)
    return found if found is not None and found >= 0 else None


def _text(value: object) -> str | None:
    found = number(value)
    return str(found) if found is not None else value if isinstance(value, str) else None


def first_of(found: Iterable[Described | None]) -> Described | None:
    """The first description, completed by the ones behind it."""
    result: Described | None = None
    for description in found:
        if description is not None:
            result = description if result is None else result.completed(description)
    return result
