"""Define the collectives, their cost on a ring, and the check that all ranks launch them in the same order.

Bytes that each of N ranks moves for a full (gathered) tensor of S bytes: all-gather and reduce-scatter
S (N-1)/N, all-reduce 2 S (N-1)/N (a reduce-scatter and an all-gather), broadcast S.

A process group matches the ranks' collectives only by position.  If two ranks launch collectives of equal
size for different units, each gets a mixture of both; with different sizes gloo aborts.

Every rank predicts its next collective from the previous ones.  All ranks have the same history and therefore
the same prediction, and a predicted collective is launched without any message.  A rank whose next collective
differs from the prediction compares it with all ranks before the launch, as do all ranks while there is no
prediction (the first pass).  If all ranks change their order in the same way, they continue; otherwise every
rank raises an error that names ranks and units.

No mixing.  Consider the first position at which two ranks launched different collectives.  Their histories
are equal, so their predictions are too.  At least one of them launched an unpredicted collective, so it
compared with the other rank at this position and found the same collective: a contradiction.

No deadlock.  A rank that has launched the predicted collective does not start a comparison.  That collective
cannot complete, because the deviating rank did not launch it.  While waiting, the rank checks every
``POLL_S`` for the position that the deviating rank has written to the process group's store, and joins the
comparison.  It joins only if it has launched that position: before, it may still deviate itself, and the
collective that it waits for can complete.  If a rank never gets there, the comparison ends with its exit or
the group's timeout.

On NCCL the host does not block in a wait.  Nothing is mixed there either, but a rank that followed the
prediction fails with NCCL's own timeout, and the deviating rank with the timeout of the comparison.

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

#: Seconds that a wait blocks between checks for a deviating rank.
POLL_S: Final = 1.0
_FOLLOWER = -1
_RECORD = struct.Struct("=q16s")  # position, and a hash of the collective at that position
_TEXT_BYTES = 512


class Handle(Protocol):
    """A collective in flight."""

    def wait(self) -> None:
        """Block until the result is ready; later calls do nothing.

        Raises:
            RuntimeError: the collective failed, for example because a peer is gone.
        """


class Comm(Protocol):
    """The collectives that the engine uses.  All ranks must make the same calls in the same order.

    A tensor passed to a collective must not be read or written before ``wait()`` on its handle returns.
    ``unit`` is the name of the unit that the bytes belong to.
    """

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""

    @property
    def moved(self) -> Mapping[str, int]:
        """Bytes that this rank has moved so far by ring algorithms, by kind."""

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        """Gather every rank's ``shard`` into ``out``, in rank order; ``shard`` may be a slice of ``out``."""

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        """Sum ``full`` over the ranks into ``out``, this rank's slice, which may be a view of ``full``."""

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Sum ``tensor`` over the ranks, in place."""

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Overwrite ``tensor`` with rank 0's values."""

    def close(self) -> None:
        """Shut the transport down; nothing may be launched afterwards."""


class CollectiveType(StrEnum):
    """Kind of a collective."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedCollective:
    """One collective; its fields are equal on all ranks.  ``bytes`` is the size of the full tensor."""

    kind: CollectiveType
    group: str
    sequence: int
    unit: str
    bytes: int
    dtype: str


def get_ring_factor(kind: CollectiveType, ranks: int) -> float:
    """Return the bytes that each rank moves per byte of the full tensor."""
    if ranks == 1:
        return 0.0
    if kind is CollectiveType.BROADCAST:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if kind is CollectiveType.ALL_REDUCE else share


class CollectiveOrder:
    """Checks that all ranks of a group launch the same collectives in the same order.

    ``comparisons`` counts the exchanges (24 bytes from each rank), ``announcements`` the entries written to
    the store.  Neither grows while the order repeats.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """Check ``group``, which must have more than one rank."""
        self.comparisons = 0
        self.announcements = 0
        self._group = group
        self._ranks = dist.get_process_group_ranks(group)
        self._history = RepeatedSequence()
        self._launched: deque[LaunchedCollective] = deque(maxlen=1024)
        self._side_group: dist.ProcessGroupGloo | None = None
        self._store: Any = None
        self._error: str | None = None

    def check(self, collective: LaunchedCollective) -> None:
        """Check that all ranks launch this collective at this position; call it before every launch.

        Raises:
            RuntimeError: another rank launches a different one, or has exited.
        """
        self.check_agreed()
        identity = (collective.kind, collective.unit)
        expected = self._history.expected
        if identity != expected:
            announced = None if expected is None else self._announce(collective.sequence)
            self._compare(collective)
            if announced is not None:
                # Remove this rank's announcement after a comparison in which all ranks agreed.
                store, key = announced
                store.delete_key(key)
                if dist.get_rank(self._group) == 0:
                    store.delete_key("count")
        self._history.append(identity)
        self._launched.append(collective)

    def poll(self) -> None:
        """Join a comparison that another rank requests; call it during a long wait.

        Raises:
            RuntimeError: the ranks disagree.
        """
        self.check_agreed()
        # The first position at which a rank has announced a deviation, or None.
        if self._side_group is None:
            position = None
        else:
            store = self._get_announcement_store()
            count = store.add("count", 0)
            position = min((int(store.get(str(number))) for number in range(1, count + 1)), default=None)
        if position is not None and self._launched and self._launched[-1].sequence >= position:
            self._compare(None)

    def check_agreed(self) -> None:
        """Check that the ranks have not disagreed: after that, collectives in flight may never complete.

        Raises:
            RuntimeError: the ranks have disagreed.
        """
        if self._error is not None:
            raise RuntimeError(self._error)

    def close(self) -> None:
        """Release the process groups of the engine and of the comparisons; later calls do nothing."""
        self._group = self._side_group = self._store = None

    def _compare(self, own_next: LaunchedCollective | None) -> None:
        """Compare every rank's next collective; ``own_next`` is None if this rank followed the prediction."""
        own_record = _RECORD.pack(_FOLLOWER, b"")
        if own_next is not None:
            digest = hashlib.blake2b(_describe_collective(own_next).encode(), digest_size=16).digest()
            own_record = _RECORD.pack(own_next.sequence, digest)
        try:
            records = self._exchange(own_record)
            self.comparisons += 1
            if own_next is not None and all(record == records[0] for record in records):
                return
            position = min(position for position, _ in map(_RECORD.unpack, records) if position != _FOLLOWER)
            collectives = [*self._launched, *([] if own_next is None else [own_next])]
            descriptions = (_describe_collective(one) for one in collectives if one.sequence == position)
            text = next(descriptions, "nothing yet")
            texts = self._exchange(text.encode("ascii", "replace")[:_TEXT_BYTES].ljust(_TEXT_BYTES))
        except RuntimeError as error:  # without its traceback, whose frames keep the process group alive
            raise self._make_timeout_error(own_next, error) from error.with_traceback(None)
        self._error = _format_disagreement(position, self._ranks, [text.decode().rstrip() for text in texts])
        raise RuntimeError(self._error)

    def _exchange(self, own: bytes) -> list[bytes]:
        """All-gather bytes of equal length, in memory outside torch's allocator."""
        size, gathered = len(own), bytearray(len(own) * len(self._ranks))
        row, rows = bytearray(own), torch.frombuffer(gathered, dtype=torch.uint8)
        side_group: Any = self._get_side_group()
        side_group._allgather_base(rows, torch.frombuffer(row, dtype=torch.uint8)).wait()
        return [bytes(gathered[start : start + size]) for start in range(0, len(gathered), size)]

    def _get_side_group(self) -> dist.ProcessGroupGloo:
        """Return the group for comparisons, created by the first one, in which all ranks take part.

        It is not created by ``new_group()``: such a group exists until the default group is destroyed, and if
        it is destroyed earlier, the next group reuses its name and finds its old addresses in the store.
        """
        if self._side_group is None:
            group = dist.group.WORLD if self._group is None else self._group
            assert group is not None
            rank = dist.get_rank(self._group)
            prefix = f"zero_order/{group.group_name}"
            # counts the groups created by this rank, the same number on all ranks
            transport = _get_default_store().add(f"{prefix}/{rank}", 1)
            self._store = _prefix_store(f"{prefix}/transport {transport}", _get_default_store())
            self._side_group = dist.ProcessGroupGloo(self._store, rank, len(self._ranks), _get_timeout(group))
        return self._side_group

    def _make_timeout_error(self, own_next: LaunchedCollective | None, error: BaseException) -> RuntimeError:
        if own_next is None:
            return RuntimeError(f"ranks disagree about the order of units, and one has exited: {error}")
        expected = self._history.expected
        prediction = "" if expected is None else f" ({expected[0]} of unit {expected[1]} was expected)"
        return RuntimeError(
            f"{own_next.kind} of unit {own_next.unit} failed: not all ranks launched it{prediction}: {error}"
        )

    def _announce(self, position: int) -> tuple[Any, str]:
        store = self._get_announcement_store()
        key = str(store.add("count", 1))
        store.set(key, str(position))
        self.announcements += 1
        return store, key

    def _get_announcement_store(self) -> Any:
        """Return the store for announcements before the next comparison, the same on all ranks."""
        return _prefix_store(f"comparison {self.comparisons}", self._store)


class RepeatedSequence:
    """Predicts the next item of a repeating sequence from an earlier occurrence of its recent items.

    The occurrence with the longest common history is followed, the latest among equals, until a prediction
    fails.  A sequence of any period is predicted from its second or third repetition on.
    """

    def __init__(self, min_items: int = 2**16, *, matches: int = 64, context: int = 512) -> None:
        """Keep at least ``min_items``; compare up to ``context`` items for each of the last ``matches``."""
        self._min_items = min_items
        self._context = context
        self._items: list[Any] = []
        self._positions: defaultdict[Hashable, deque[int]] = defaultdict(lambda: deque(maxlen=matches))
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
            match = max(
                self._positions[item],
                key=lambda position: (self._count_common_items(position, end), position),
                default=None,
            )
            self._next = None if match is None else match + 1
        self._positions[item].append(end)
        if len(self._items) >= 2 * self._min_items:
            count = len(self._items) - self._min_items
            del self._items[:count]
            self._next = None if self._next is None or self._next < count else self._next - count
            for positions in self._positions.values():
                remaining = [position - count for position in positions if position >= count]
                positions.clear()
                positions.extend(remaining)

    def _count_common_items(self, position: int, end: int) -> int:
        limit = min(position, self._context)
        length = 0
        while length < limit and self._items[position - length] == self._items[end - length]:
            length += 1
        return length


def _describe_collective(collective: LaunchedCollective) -> str:
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
    return getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
