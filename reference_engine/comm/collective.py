"""Define the interface of collectives, their cost on a ring, and the check that all ranks launch the same.

Bytes that each of N ranks moves for a full (gathered) tensor of S bytes: all-gather and reduce-scatter
S (N-1)/N, all-reduce 2 S (N-1)/N (a reduce-scatter and an all-gather), broadcast S.

A process group matches the ranks' collectives only by position.  If two ranks need different units of equal
size, each gets a mixture of both; with different sizes gloo aborts.

Every rank predicts its next collective from those before it.  All ranks have the same past and so the same
prediction, and a predicted collective is launched without a message.  A rank whose next collective is another
one compares with all ranks before it launches, and so do all ranks if nothing is predicted (the first pass).
Programs that change their order together continue; otherwise every rank gets an error that names ranks and
units.

No mixture.  Take the first position at which two ranks have launched different collectives.  Their pasts are
equal, so their predictions are too.  At least one of them launched what was not predicted, so it compared
with the other rank at this position and found the same collective; but the other launched another: a
contradiction.

No deadlock.  A rank that has launched the predicted collective does not enter the comparison by itself.  It
cannot complete that collective either, because one rank is missing in it.  While it waits, it checks every
``POLL_S`` for the position that the deviating rank has written to the process group's store, and joins.  It
joins only if it has launched that position: before that it may still deviate too, and what it waits for can
complete.  If a rank never reaches either, the comparison ends with its exit or with the group's timeout.

On NCCL the host does not block in a wait.  Nothing is mixed there either, but a rank that followed the
prediction fails by NCCL's own timeout, and the deviating rank by that of the comparison.

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
    """A collective in flight."""

    def wait(self) -> None:
        """Block until the result is ready; later calls do nothing.

        Raises:
            RuntimeError: the collective failed, for example because a peer is gone.
        """


class Comm(Protocol):
    """The collectives that the engine needs.  All ranks must make the same calls in the same order.

    A tensor passed to a collective must not be read or written until its handle has been waited for.
    ``unit`` names what the bytes belong to.
    """

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""

    @property
    def moved(self) -> Mapping[str, int]:
        """Bytes that this rank has moved so far on a ring, by kind."""

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        """Gather every rank's ``shard`` into ``out``, in rank order; ``shard`` may be a slice of ``out``."""

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        """Sum ``full`` over the ranks, keep this rank's slice in ``out``, which may be a view of ``full``."""

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Sum ``tensor`` over the ranks, in place."""

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Overwrite ``tensor`` with rank 0's values."""

    def close(self) -> None:
        """Stop what the transport started; nothing may be launched afterwards."""


class Kind(StrEnum):
    """Kind of a collective."""

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
    """Return the bytes that each rank moves per byte of the full tensor."""
    if ranks == 1:
        return 0.0
    if kind is Kind.BROADCAST:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if kind is Kind.ALL_REDUCE else share


#: Seconds that a wait blocks before it looks for a deviating rank, and between two looks.
POLL_S: Final = 1.0
_FOLLOWER = -1
_RECORD = struct.Struct("=q16s")  # position, and a hash of the collective launched there
_TEXT_BYTES = 512


class CollectiveOrder:
    """Check that all ranks of a group launch the same collectives in the same order.

    ``comparisons`` counts the exchanges (24 bytes from each rank), ``announcements`` the entries written to
    the store.  Neither grows while the order repeats itself.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """Check ``group``, which must have more than one rank."""
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
        """Return if no rank launches another collective at this position; call it before every launch.

        Raises:
            RuntimeError: another rank launches a different one, or is gone.
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

    def poll(self) -> None:
        """Join a comparison that another rank requests; call it during a long wait.

        Raises:
            RuntimeError: the ranks disagree.
        """
        self.check_agreed()
        position = self._announced()
        if position is not None and self._launched and self._launched[-1].sequence >= position:
            self._compare(None)

    def check_agreed(self) -> None:
        """Raise after a disagreement: what was launched may never complete.

        Raises:
            RuntimeError: the ranks have disagreed.
        """
        if self._error is not None:
            raise RuntimeError(self._error)

    def close(self) -> None:
        """Release the process groups of the engine and of the comparisons; later calls do nothing."""
        self._group = self._side = self._store = None

    def _compare(self, mine: Collective | None) -> None:
        """Exchange every rank's next collective; ``mine`` is None if this rank has followed the
        prediction.
        """
        try:
            claims = self._exchange(_RECORD.pack(_FOLLOWER, b"") if mine is None else _pack_record(mine))
            self.comparisons += 1
            if mine is not None and all(claim == claims[0] for claim in claims):
                return
            position = min(at for at, _ in map(_RECORD.unpack, claims) if at != _FOLLOWER)
            texts = self._exchange(self._text_at(position, mine))
        except RuntimeError as error:  # without its traceback, whose frames keep the process group alive
            raise self._make_timeout_error(mine, error) from error.with_traceback(None)
        self._error = _format_disagreement(position, self._ranks, [text.decode().rstrip() for text in texts])
        raise RuntimeError(self._error)

    def _text_at(self, position: int, mine: Collective | None) -> bytes:
        here = [*self._launched, *([] if mine is None else [mine])]
        text = next((_describe_collective(one) for one in here if one.sequence == position), "nothing yet")
        return text.encode("ascii", "replace")[:_TEXT_BYTES].ljust(_TEXT_BYTES)

    def _exchange(self, own: bytes) -> list[bytes]:
        """Return every rank's bytes, in memory outside torch's allocator."""
        size, everything = len(own), bytearray(len(own) * len(self._ranks))
        row, rows = bytearray(own), torch.frombuffer(everything, dtype=torch.uint8)
        side: Any = self._side_group()
        side._allgather_base(rows, torch.frombuffer(row, dtype=torch.uint8)).wait()
        return [bytes(everything[start : start + size]) for start in range(0, len(everything), size)]

    def _side_group(self) -> dist.ProcessGroupGloo:
        """Return the group of the comparisons, created in the first of them, which all ranks reach.

        Not with ``new_group()``: such a group stays until the default group ends.  If it is destroyed, the
        next one gets its name and then finds the old one's addresses.
        """
        if self._side is None:
            group = dist.group.WORLD if self._group is None else self._group
            assert group is not None
            rank = dist.get_rank(self._group)
            place = f"zero_order/{group.group_name}"
            transport = _get_default_store().add(
                f"{place}/{rank}", 1
            )  # counts the groups made here: equal on all ranks
            self._store = _prefix_store(f"{place}/transport {transport}", _get_default_store())
            self._side = dist.ProcessGroupGloo(self._store, rank, len(self._ranks), _get_timeout(group))
        return self._side

    def _make_timeout_error(self, mine: Collective | None, error: BaseException) -> RuntimeError:
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
        """Remove this rank's announcement after a comparison that agreed, in which all ranks announced."""
        store, key = announced
        store.delete_key(key)
        if dist.get_rank(self._group) == 0:
            store.delete_key("count")

    def _announcements(self) -> Any:
        """Return the store for announcements until the next comparison; all ranks have made equally many."""
        return _prefix_store(f"comparison {self.comparisons}", self._store)

    def _announced(self) -> int | None:
        """Return the first position at which a rank deviates, or None."""
        if self._side is None:
            return None
        store = self._announcements()
        count = store.add("count", 0)
        return min((int(store.get(str(number))) for number in range(1, count + 1)), default=None)


class RepeatedSequence:
    """Predict a sequence that repeats itself, from earlier places that match its end.

    The chosen place has the longest common past; among equals, the latest wins.  It moves on as long as its
    predictions hold.  A program of any period is predicted from its second or third repetition on.
    """

    def __init__(self, kept: int = 2**16, *, places: int = 64, context: int = 512) -> None:
        """Keep at least ``kept`` items; compare up to ``context`` items at the last ``places`` matches."""
        self._kept = kept
        self._context = context
        self._items: list[Any] = []
        self._places: defaultdict[Hashable, deque[int]] = defaultdict(lambda: deque(maxlen=places))
        self._next: int | None = None

    @property
    def expected(self) -> Any:
        """The predicted next item, or None."""
        return None if self._next is None else self._items[self._next]

    def append(self, item: Hashable) -> None:
        """Append an item and update the prediction."""
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
