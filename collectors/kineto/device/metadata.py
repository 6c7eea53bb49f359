"""Describe a collective from its launch: the arguments of PyTorch's ``record_param_comms``, else the
operators and annotations around it.

Metadata exists from torch 2.2 on, first with ``Process Group ID`` instead of a name; ``Seq`` since 2026.
Lists are written as text ("[0, 1]"); long ones are truncated with dots and then unusable. Without metadata,
``c10d::_allgather_base_`` and the like show the shapes of their tensors, ``nccl:all_reduce`` that of its
input.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zprof.collectors.kineto.collectives import parse_collective_kind, parse_element_type
from zprof.collectors.kineto.trace import Arguments, count_elements, int64_or_none
from zprof.model.collectives import CollectiveKind

_MAX_RANKS = 1 << 16
_MISSING = (None, "", ())
_LIST = re.compile(r"\[\s*(?:\d{1,15}(?:\s*,\s*\d{1,15})*)?\s*\]", re.ASCII)
_ROOTED = frozenset(
    {CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDescription:
    """A collective as its launch describes it; None or empty if unknown.

    ``ranks`` are global, in the order of the group. They are a range if they are stated as one: each of
    thousands of collectives may name each of thousands of ranks. ``peer`` is global too.
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

    def completed(self, other: "LaunchDescription") -> "LaunchDescription":
        """Return this description with the unknown fields taken from another one of the same collective."""
        more = {
            name: value
            for name in self.__slots__
            if getattr(self, name) in _MISSING and (value := getattr(other, name)) not in _MISSING
        }
        return replace(self, **more) if more else self


def describe_arguments(arguments: Arguments) -> LaunchDescription | None:
    """Return the description by an event's arguments; None if it is no collective (a wait, say)."""
    kind = parse_collective_kind(arguments.collective)
    if kind is None:
        return None
    dtype, element_bytes = parse_element_type(arguments.dtype) or (None, None)
    description = arguments.group_description
    ranks, size = _read_ranks(arguments), _read_group_size(arguments)
    return LaunchDescription(
        kind=kind,
        dtype=dtype,
        element_bytes=element_bytes,
        elements=_count_stated_elements(kind, arguments, len(ranks) or size),
        group=_text_or_none(arguments.group) or _text_or_none(arguments.group_id),
        description=description if isinstance(description, str) else "",
        ranks=ranks,
        group_size=size,
        sequence=_natural_or_none(arguments.sequence),
        peer=_find_peer(kind, arguments, ranks),
    )


def parse_numbers(text: object) -> tuple[int, ...] | None:
    """Parse ``"[0, 1]"`` as numbers; None if it is no such list or truncated."""
    if isinstance(text, list):
        return tuple(text) if all(int64_or_none(entry) is not None for entry in text) else None
    if not isinstance(text, str) or _LIST.fullmatch(text) is None:
        return None
    return tuple(int(found) for found in re.findall(r"\d+", text))


def _count_stated_elements(kind: CollectiveKind, arguments: Arguments, size: int | None) -> int | None:
    """Return the elements of the full tensor: what is gathered, scattered, or sent by this rank to all."""
    given, result = int64_or_none(arguments.elements_in), int64_or_none(arguments.elements_out)
    if kind is CollectiveKind.BARRIER:
        return 0
    if kind is CollectiveKind.ALL_TO_ALL:
        return given if given else _sum_splits(parse_numbers(arguments.split_in))
    known = [count for count in (given, result) if count is not None and count >= 0]
    if len(known) == 2 or kind not in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return max(known, default=None)
    part = given if kind is CollectiveKind.ALL_GATHER else result
    if part is None:
        return max(known, default=None)
    return part * size if size else None


def _sum_splits(splits: tuple[int, ...] | None) -> int | None:
    return sum(splits) if splits else None


def _read_ranks(arguments: Arguments) -> tuple[int, ...] | range:
    listed = parse_numbers(arguments.group_ranks)
    if listed:
        return listed if len(set(listed)) == len(listed) else ()
    first, stride = int64_or_none(arguments.first_global_rank), int64_or_none(arguments.global_rank_stride)
    size = _read_group_size(arguments)
    if first is None or stride is None or size is None or first < 0 or stride <= 0:
        return ()
    return range(first, first + stride * size, stride)


def _read_group_size(arguments: Arguments) -> int | None:
    size = int64_or_none(arguments.group_size)
    return size if size is not None and 0 < size <= _MAX_RANKS else None


def _find_peer(kind: CollectiveKind, arguments: Arguments, ranks: Sequence[int]) -> int | None:
    """Return the global rank of the peer, or of the root, which is stated as a group rank."""
    if kind is CollectiveKind.SEND:
        return _natural_or_none(arguments.destination_rank)
    if kind is CollectiveKind.RECV:
        return _natural_or_none(arguments.source_rank)
    root = _natural_or_none(arguments.rank) if kind in _ROOTED else None
    return ranks[root] if root is not None and root < len(ranks) else None


def _natural_or_none(value: object) -> int | None:
    found = int64_or_none(value)
    return found if found is not None and found >= 0 else None


def _text_or_none(value: object) -> str | None:
    found = int64_or_none(value)
    return str(found) if found is not None else value if isinstance(value, str) else None


def merge_descriptions(found: Iterable[LaunchDescription | None]) -> LaunchDescription | None:
    """Return the first description, completed by the later ones."""
    result: LaunchDescription | None = None
    for description in found:
        if description is not None:
            result = description if result is None else result.completed(description)
    return result


_OPERATOR_PREFIXES = ("c10d::", "symm_mem::")
NCCL_PREFIX = "nccl:"
_MAX_TENSORS = 1 << 10


def is_collective_operator(name: str) -> bool:
    """Return whether a host operator launches collectives."""
    return name.startswith(_OPERATOR_PREFIXES) and parse_collective_kind(name) not in (
        None,
        CollectiveKind.OTHER,
    )


def is_nccl_annotation(name: str) -> bool:
    """Return whether a range is one that torch writes around a collective of NCCL."""
    return name.startswith(NCCL_PREFIX) and parse_collective_kind(name) is not None


def describe_operator(name: str, arguments: Arguments | None) -> LaunchDescription:
    """Return the description by an operator's name and the shapes of its tensors."""
    kind = parse_collective_kind(name)
    dtype, element_bytes = _find_element_type(arguments)
    return LaunchDescription(
        kind=kind,
        dtype=dtype,
        element_bytes=element_bytes,
        elements=_count_shown_elements(name, kind, arguments),
    )


def _find_element_type(arguments: Arguments | None) -> tuple[str | None, int | None]:
    types = arguments.types if arguments is not None and isinstance(arguments.types, list) else []
    found = (parse_element_type(text) for text in types[:_MAX_TENSORS])
    return next((known for known in found if known is not None), (None, None))


def _count_shown_elements(name: str, kind: CollectiveKind | None, arguments: Arguments | None) -> int | None:
    """Return the elements of the largest tensor; for an all-to-all, of the input.

    An annotation shows inputs only.
    """
    if kind is CollectiveKind.BARRIER:
        return 0
    dims = arguments.dims if arguments is not None and isinstance(arguments.dims, list) else []
    if name.startswith(NCCL_PREFIX):
        return None if kind is CollectiveKind.ALL_GATHER else count_elements(dims)
    if kind is CollectiveKind.ALL_TO_ALL:
        return count_elements(dims, 1)
    counts = (count_elements(dims, argument) for argument in range(min(len(dims), _MAX_TENSORS)))
    return max((count for count in counts if count is not None), default=None)
