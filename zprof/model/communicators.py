"""Define what the durations of a job's collectives show, by communicator, without its steps.

A collective ends on all ranks almost together, so the rank that arrives last has the shortest kernel. The
shortest kernel of an operation is its transfer; what another rank's kernel takes longer is its wait, at most.
"""

from collections.abc import Sequence

from msgspec import Struct

from zprof.base.formatting import format_bytes, format_ns, format_percent, format_rate, printable, shorten

_MAX_NAME, _MAX_PLACES = 48, 3
#: A late rank that costs a smaller share of the kernel time is no risk.
_MIN_COST_RATIO = 0.03


class RankPlace(Struct, frozen=True, kw_only=True):
    """A rank of a communicator: its number there, its process, and its rank in the job if that is known."""

    member: int
    host: str
    process: int
    rank: int | None


class MessageClass(Struct, frozen=True, kw_only=True):
    """Operations of one communicator, kind and class of sizes (a power of two).

    ``bytes``: median of the full tensors. ``operations``: distinct operations, of messages the records;
    ``whole``: those with all ranks. ``duration_ns``: median of all ranks, waits included. ``transfer_ns``:
    median of the shortest kernels, and ``slow_transfer_ns`` their 95th percentile; ``algbw_bytes_per_s``,
    ``busbw_bytes_per_s`` and ``slow_busbw_bytes_per_s`` (5th percentile) follow from them. Of messages, whose
    waits are not known, ``transfer_ns`` is the 10th percentile. If ranks are missing, a transfer is at most
    so long, and a bandwidth at least so high. ``wait_ns``: mean over the ranks of a whole operation, median
    over operations; None without one.
    """

    communicator: str
    name: str
    ranks: int
    nodes: int
    kind: str
    bytes: int
    operations: int
    whole: int
    duration_ns: int
    transfer_ns: int
    slow_transfer_ns: int
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    slow_busbw_bytes_per_s: float | None
    wait_ns: int | None


class MissingRanks(Struct, frozen=True, kw_only=True):
    """Ranks of a communicator without a file; ``members`` are the first of them."""

    communicator: str
    name: str
    ranks: int
    missing: int
    members: tuple[int, ...]


class SlowCommunicator(Struct, frozen=True, kw_only=True):
    """Operations that transfer more slowly than those of other communicators of this kind, size and shape.

    ``busbw_bytes_per_s``: median; ``peer_busbw_bytes_per_s``: median of the medians of the ``peers``, which
    have ``peer_operations`` together. ``cost_ns``: what the transfers took longer than the peers', in total.
    """

    communicator: str
    name: str
    ranks: int
    nodes: int
    places: tuple[RankPlace, ...]
    kind: str
    bytes: int
    operations: int
    busbw_bytes_per_s: float
    peers: int
    peer_operations: int
    peer_busbw_bytes_per_s: float
    cost_ns: int

    @property
    def ratio(self) -> float:
        """Return the bandwidth over that of the peers."""
        return self.busbw_bytes_per_s / self.peer_busbw_bytes_per_s


class LateRanks(Struct, frozen=True, kw_only=True):
    """Ranks that arrive last in a communicator again and again, inferred from durations.

    ``waited``: those of the ``operations`` in which a rank waits, for these are: ``last_ratio``, the share in
    which the last to arrive is one of them; ``lead_ns``, by how much the last of the others comes before
    them, median; ``wait_ns``, mean wait of the others, median, at most.
    ``waits_for``: other communicator in which they wait, since it is slow or has another late rank, which may
    explain it; "" if none.
    ``confirmed_ratio``: share of the operations in which one of them starts last by the clock of the common
    host; None without start times. ``cost_ns``: sum of the leads; ``total_ns``: mean kernel time of a rank in
    all operations.
    """

    communicator: str
    name: str
    ranks: int
    kinds: tuple[str, ...]
    places: tuple[RankPlace, ...]
    operations: int
    waited: int
    last_ratio: float
    lead_ns: int
    wait_ns: int
    waits_for: str
    confirmed_ratio: float | None
    cost_ns: int
    total_ns: int

    @property
    def is_minor(self) -> bool:
        """Return True if the ranks would hardly wait less without it."""
        return self.cost_ns < _MIN_COST_RATIO * self.total_ns


class SlowPeriod(Struct, frozen=True, kw_only=True):
    """Operations in a row that took clearly longer than the others of their communicator, kind and sizes.

    ``first`` and ``last``: their numbers among the ``operations``; ``last`` is None if it did not end.
    ``from_ns`` and ``until_ns``: when their first and last were written (time since 1970), None if unknown.
    ``transfer_ns`` and ``usual_transfer_ns``: medians of the shortest kernels within and outside.
    """

    communicator: str
    name: str
    ranks: int
    kind: str
    bytes: int
    operations: int
    first: int
    last: int | None
    from_ns: int | None
    until_ns: int | None
    transfer_ns: int
    usual_transfer_ns: int
    is_whole: bool
    cost_ns: int

    @property
    def ratio(self) -> float:
        """Return how many times as long the transfers are."""
        return self.transfer_ns / self.usual_transfer_ns


class Communicators(Struct, frozen=True, kw_only=True):
    """What the collectives of a job show; each list has its largest cost, time or number first.

    ``records``: operations of single ranks. ``processes`` and ``hosts`` have a file.
    ``tested``: number of communicators in which a late rank could be found; ``compared``: of the message
    classes, how many have peers.
    """

    records: int
    processes: int
    hosts: int
    communicators: int
    tested: int
    compared: int
    classes: tuple[MessageClass, ...]
    missing: tuple[MissingRanks, ...]
    slow: tuple[SlowCommunicator, ...]
    late: tuple[LateRanks, ...]
    periods: tuple[SlowPeriod, ...]


CommunicatorSign = LateRanks | SlowCommunicator | SlowPeriod


def name_communicator(name: str, communicator: str) -> str:
    """Return the program's name of a communicator, which several may share, and its id."""
    known = name if name not in ("", "unknown", "undefined") else ""
    return shorten(printable(f"{known} {communicator}".strip()), _MAX_NAME)


def name_places(places: Sequence[RankPlace]) -> str:
    """Return ranks of a job, or their numbers in their communicator and their processes."""
    shown = places[:_MAX_PLACES]
    more = f" and {len(places) - len(shown)} more" if len(places) > len(shown) else ""
    if all(place.rank is not None for place in places):
        noun = "rank" if len(places) == 1 else "ranks"
        return f"{noun} {', '.join(str(place.rank) for place in shown)}{more} ({_list_hosts(places)})"
    members = ", ".join(
        f"member {place.member} ({printable(place.host)}, pid {place.process})" for place in shown
    )
    return f"{members}{more}"


def _list_hosts(places: Sequence[RankPlace]) -> str:
    hosts = list(dict.fromkeys(place.host for place in places))
    more = f" and {len(hosts) - _MAX_PLACES} more" if len(hosts) > _MAX_PLACES else ""
    return printable(", ".join(hosts[:_MAX_PLACES])) + more


def describe_sign(sign: CommunicatorSign) -> str:
    """Return what was found as one clause."""
    where = name_communicator(sign.name, sign.communicator)
    if isinstance(sign, LateRanks):
        kind = sign.kinds[0] if len(sign.kinds) == 1 else "collective"
        verb = "arrives" if len(sign.places) == 1 else "arrive"
        return (
            f"{name_places(sign.places)} {verb} last in {format_percent(sign.last_ratio)} of {sign.waited} "
            f"{kind} operations with a wait (of {sign.operations}) of {where} ({sign.ranks} ranks): the "
            f"others wait about {format_ns(sign.wait_ns)} each"
        )
    if isinstance(sign, SlowCommunicator):
        return (
            f"{where} ({name_places(sign.places)}) is slow: {sign.kind} of {format_bytes(sign.bytes)} at "
            f"{format_rate(sign.busbw_bytes_per_s)}, {format_rate(sign.peer_busbw_bytes_per_s)} in "
            f"{sign.peers} like it ({sign.operations} and {sign.peer_operations} operations)"
        )
    end = "" if sign.last is None else f" to {sign.last + 1}"
    return (
        f"{where} is {sign.ratio:.1f} times as slow from operation {sign.first + 1}{end} of "
        f"{sign.operations}: {sign.kind} of {format_bytes(sign.bytes)} take {format_ns(sign.transfer_ns)}, "
        f"{format_ns(sign.usual_transfer_ns)} otherwise"
    )
