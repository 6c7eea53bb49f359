"""Describe collectives: the interface Comm, what one costs on a ring, and the check that all ranks launch
the same ones in the same order.

Bytes that each of N ranks moves for a full (gathered) tensor of S bytes: all-gather and reduce-scatter
S (N-1)/N, all-reduce 2 S (N-1)/N (a reduce-scatter and an all-gather), broadcast S.

A process group pairs the ranks' collectives by their position alone: where two ranks need different units
of equal size, each would get a mixture of both, and of different sizes gloo aborts.

Every rank predicts its next collective from those before it.  All ranks have the same past, so they have
the same prediction, and a collective that was predicted is launched without a message.  A rank whose next
collective is another one does not launch it but compares with all ranks first, and so do all ranks where
nothing is predicted (the first pass).  Programs that change their order together go on; otherwise every
rank gets an error that names ranks and units.

No mixture.  Take the first position at which two ranks have launched different collectives.  Their pasts
are equal, so their predictions are.  At least one launched what was not predicted, so it has compared with
the other rank at this position and found the same collective; but the other launched another: a
contradiction.

No deadlock.  A rank that has launched the predicted collective does not come to the comparison by itself,
but cannot complete that collective either, because one rank is missing in it.  While it waits it looks,
once in ``POLL_S``, for the position that the deviating rank has left in the process group's store, and
joins.  It joins only if it has launched that position: before that it may still deviate too, and what it
waits for can complete.  A rank that comes to neither ends the comparison by its exit, or by the group's
timeout.

On NCCL the host does not block in a wait.  Nothing is mixed there either, but a rank that has followed the
prediction ends by NCCL's own timeout, and the deviating rank by that of the comparison.

The order between two engines on one group is not checked, nor are the user's own collectives.
"""

import hashlib
import struct
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist


class Handle(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Block until the result is there; later calls do nothing.

        Raises:
            RuntimeError: the collective failed, for example because a peer is gone.
        """


class Comm(Protocol):
    """What the engine asks of a network.  All ranks must make the same calls in the same order.

    A tensor that was handed over may be neither read nor written before its handle was waited for.
    ``unit`` names what the bytes belong to.
    """

    @property
    def rank(self) -> int:
        """Of this process in the group."""

    @property
    def world_size(self) -> int:
        """Ranks in the group."""

    @property
    def moved(self) -> Mapping[str, int]:
        """Bytes that this rank has moved so far, by kind, as a ring would."""

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        """Put every rank's ``shard`` into ``out``, in rank order; it may be this rank's slice of ``out``."""

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        """Sum ``full`` over the ranks and keep this rank's slice in ``out``, which may lie in ``full``."""

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Sum ``tensor`` over the ranks, in place."""

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Overwrite ``tensor`` with rank 0's."""

    def close(self) -> None:
        """End what the transport started; nothing may be launched afterwards."""


class Kind(StrEnum):
    """What a collective does."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective; equal on all ranks.  ``bytes`` is the size of the full tensor."""

    kind: Kind
    group: str
    sequence: int
    unit: str
    bytes: int
    dtype: str


def get_ring_factor(kind: Kind, ranks: int) -> float:
    """Bytes that each rank moves for one byte of the full tensor."""
    if ranks == 1:
        return 0.0
    if kind is Kind.BROADCAST:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if kind is Kind.ALL_REDUCE else share


#: Seconds that a wait takes before it looks for a rank that deviates, and between two looks.
POLL_S: Final = 1.0
_FOLLOWER = -1
_RECORD = struct.Struct("=q16s")  # the position, and a hash of what is launched there
_TEXT_BYTES = 512


class CollectiveOrder:
    """The order of one group's collectives, as this rank launches them.

    ``comparisons`` counts the exchanges (24 bytes from each rank), ``announcements`` what was written to the
    store.  Both stay as they are while the order repeats itself.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """Watch ``group``, which has more than one rank."""
        self.comparisons = 0
        self.announcements = 0
        self._group = group
        self._ranks = dist.get_process_group_ranks(group)
        self._past = RepeatedSequence()
        self._launched: deque[Collective] = deque(maxlen=1024)
        self._side: dist.ProcessGroupGloo | None = None
        self._store: Any = None
        self._error: str | None = None

    def check(self, collective: Collective) -> None:
        """Return when no rank launches another collective at this position; call it before every launch.

        Raises:
            RuntimeError: another rank does, or is gone.
        """
        self.check_agreed()
        identity = (collective.kind, collective.unit)
        expected = self._past.expected
        if identity != expected:
            announced = None if expected is None else self._announce(collective.sequence)
            self._compare(collective)
            if announced is not None:
                self._withdraw(announced)
        self._past.append(identity)
        self._launched.append(collective)

    def look(self) -> None:
        """Join a comparison that another rank asks for; call it while a wait takes long.

        Raises:
            RuntimeError: the ranks disagree.
        """
        self.check_agreed()
        position = self._announced()
        if position is not None and self._launched and self._launched[-1].sequence >= position:
            self._compare(None)

    def check_agreed(self) -> None:
        """Refuse to go on after a disagreement: what was launched may never complete.

        Raises:
            RuntimeError: the ranks have disagreed.
        """
        if self._error is not None:
            raise RuntimeError(self._error)

    def close(self) -> None:
        """Let go of the process group, and end the one of the comparisons; later calls do nothing."""
        self._group = self._side = self._store = None

    def _compare(self, mine: Collective | None) -> None:
        """Exchange what is next on every rank; None: this rank has followed the prediction already."""
        try:
            claims = self._exchange(_RECORD.pack(_FOLLOWER, b"") if mine is None else _pack_record(mine))
            self.comparisons += 1
            if mine is not None and all(claim == claims[0] for claim in claims):
                return
            position = min(at for at, _ in map(_RECORD.unpack, claims) if at != _FOLLOWER)
            texts = self._exchange(self._text_at(position, mine))
        except RuntimeError as error:  # without its traceback: the frames in it keep the process group
            raise self._unanswered(mine, error) from error.with_traceback(None)
        self._error = _format_disagreement(position, self._ranks, [text.decode().rstrip() for text in texts])
        raise RuntimeError(self._error)

    def _text_at(self, position: int, mine: Collective | None) -> bytes:
        here = [*self._launched, *([] if mine is None else [mine])]
        text = next((_describe_collective(one) for one in here if one.sequence == position), "nothing yet")
        return text.encode("ascii", "replace")[:_TEXT_BYTES].ljust(_TEXT_BYTES)

    def _exchange(self, own: bytes) -> list[bytes]:
        """Return what every rank has given; in memory that is not of torch's allocator."""
        size, everything = len(own), bytearray(len(own) * len(self._ranks))
        row, rows = bytearray(own), torch.frombuffer(everything, dtype=torch.uint8)
        side: Any = self._side_group()
        side._allgather_base(rows, torch.frombuffer(row, dtype=torch.uint8)).wait()
        return [bytes(everything[start : start + size]) for start in range(0, len(everything), size)]

    def _side_group(self) -> dist.ProcessGroupGloo:
        """Make the group of the comparisons with the first of them, which all ranks come to.

        Not by ``new_group()``: that one would stay until the default group ends, or, destroyed, give its name
        to the next, which then finds the addresses of the old one.
        """
        if self._side is None:
            group = dist.group.WORLD if self._group is None else self._group
            assert group is not None
            rank = dist.get_rank(self._group)
            place = f"zero_order/{group.group_name}"
            transport = _get_default_store().add(
                f"{place}/{rank}", 1
            )  # counts those of the group: equal on all ranks
            self._store = _prefix_store(f"{place}/transport {transport}", _get_default_store())
            self._side = dist.ProcessGroupGloo(self._store, rank, len(self._ranks), _get_timeout(group))
        return self._side

    def _unanswered(self, mine: Collective | None, error: BaseException) -> RuntimeError:
        if mine is None:
            return RuntimeError(f"ranks disagree about the order of units, and one is gone: {error}")
        expected = self._past.expected
        instead = "" if expected is None else f" (where {expected[0]} of unit {expected[1]} was expected)"
        return RuntimeError(
            f"{mine.kind} of unit {mine.unit} failed: not all ranks came to it{instead}: {error}"
        )

    def _announce(self, position: int) -> tuple[Any, str]:
        store = self._announcements()
        key = str(store.add("count", 1))
        store.set(key, str(position))
        self.announcements += 1
        return store, key

    def _withdraw(self, announced: tuple[Any, str]) -> None:
        """Leave nothing in the store of a comparison in which all ranks agreed: all have announced it."""
        store, key = announced
        store.delete_key(key)
        if dist.get_rank(self._group) == 0:
            store.delete_key("count")

    def _announcements(self) -> Any:
        """Where ranks say that they deviate, until the next comparison; all have made as many of them."""
        return _prefix_store(f"comparison {self.comparisons}", self._store)

    def _announced(self) -> int | None:
        """Return the first position at which a rank deviates."""
        if self._side is None:
            return None
        store = self._announcements()
        count = store.add("count", 0)
        return min((int(store.get(str(number))) for number in range(1, count + 1)), default=None)


class RepeatedSequence:
    """Predicts a sequence that repeats itself, from where its end has stood before.

    The place is the one with the longest common past, of several the latest, and moves on as long as it
    predicts well: a program of any period is predicted from its second or third repetition on.
    """

    def __init__(self, kept: int = 2**16, *, places: int = 64, context: int = 512) -> None:
        """Keep at least the last ``kept`` items; compare ``context`` items at the last ``places`` places."""
        self._kept = kept
        self._context = context
        self._items: list[Any] = []
        self._places: defaultdict[Hashable, deque[int]] = defaultdict(lambda: deque(maxlen=places))
        self._next: int | None = None

    @property
    def expected(self) -> Any:
        """The next item; None where nothing is predicted."""
        return None if self._next is None else self._items[self._next]

    def append(self, item: Hashable) -> None:
        """Go on by one item."""
        predicted = self._next is not None and self._items[self._next] == item
        self._items.append(item)
        end = len(self._items) - 1
        if predicted:
            assert self._next is not None
            self._next += 1
        else:
            place = max(self._places[item], key=lambda at: (self._common_past(at, end), at), default=None)
            self._next = None if place is None else place + 1
        self._places[item].append(end)
        if len(self._items) >= 2 * self._kept:
            self._forget(len(self._items) - self._kept)

    def _common_past(self, place: int, end: int) -> int:
        length = 0
        while length < min(place, self._context) and self._items[place - length] == self._items[end - length]:
            length += 1
        return length

    def _forget(self, count: int) -> None:
        del self._items[:count]
        self._next = None if self._next is None or self._next < count else self._next - count
        for places in self._places.values():
            left = [place - count for place in places if place >= count]
            places.clear()
            places.extend(left)


def _pack_record(collective: Collective) -> bytes:
    digest = hashlib.blake2b(_describe_collective(collective).encode(), digest_size=16).digest()
    return _RECORD.pack(collective.sequence, digest)


def _describe_collective(collective: Collective) -> str:
    return f"{collective.kind} of unit {collective.unit} ({collective.bytes} bytes of {collective.dtype})"


def _format_disagreement(position: int, ranks: Sequence[int], texts: Sequence[str]) -> str:
    by_text: dict[str, list[int]] = {}
    for rank, text in zip(ranks, texts, strict=True):
        by_text.setdefault(text, []).append(rank)
    calls = [
        f"rank{'s' * (len(callers) > 1)} {', '.join(map(str, callers))}: {text}"
        for text, callers in by_text.items()
    ]
    return (
        f"ranks disagree about collective {position}: {'; '.join(calls)}. All ranks must call the same units "
        "in the same order"
    )


def _get_default_store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _prefix_store(prefix: str, store: Any) -> Any:
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _get_timeout(group: dist.ProcessGroup) -> timedelta:
    backend = group._get_backend(group._device_types[0])
    timeout: timedelta = getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
    return timeout
