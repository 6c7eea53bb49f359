"""Measure the cost of a message in a run: latency and bandwidth by kind, launch, start and wake-up delays.

Latency (alpha) and bandwidth (beta) come from the fit over message sizes. With a single message size they
cannot be separated: alpha is anywhere between 0 and the total time, and a prediction for another bandwidth
covers both ends. A kind that the run does not send uses the bus bandwidth of a kind that it does:

    T(kind, S) = alpha + S * bus_factor(kind, N) / busbw
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.whatif import Change, FittedLink
from zprof.step.from_units.unit_messages import ShardingMessages
from zprof.step.schedule import ALL_REDUCE, GATHER, SCATTER
from zprof.step.tasks import Floats

#: A fit that misses the median message by more than this is rejected.
_RESIDUAL_RATIO = 0.25
#: Messages longer than this multiple of the median were delayed by something else.
_OUTLIER_FACTOR = 3.0
#: Messages up to this size are pure latency.
_TINY_BYTES, _MIN_TINY = 1024, 3
_KINDS = (GATHER, SCATTER, ALL_REDUCE)
#: A thread that starts to wait less than this before the message ends does not sleep.
_NO_SLEEP_NS = 20_000
_WAKE_NS = 30_000
#: If two kinds overlap for more than this share of the messages' time, each kind has its own link.
_CONCURRENT_RATIO = 0.05


class LinkLine(Struct, frozen=True, kw_only=True):
    """T = latency + bytes * ns_per_byte; ``known`` is True if the two could be separated."""

    latency_ns: float
    ns_per_byte: float
    known: bool

    def at(self, size: float) -> float:
        """Return the time of a message in ns."""
        return self.latency_ns + self.ns_per_byte * size


class Link(Struct, frozen=True, kw_only=True):
    """Message times of each kind; ``seen`` holds measured means by kind and size."""

    lines: Mapping[str, LinkLine]
    seen: Mapping[tuple[str, float], float]
    group_size: int
    fitted: tuple[FittedLink, ...] = ()
    bandwidth_ratio: float = 1.0
    latency_ratio: float = 1.0
    ranks: int = 0

    def transfer_ns(self, kind: str, size: float) -> float:
        """Return the time of a message in ns once all ranks have arrived."""
        line, factor = self._find_line(kind)
        latency = line.latency_ns
        transfer = line.ns_per_byte * size * factor
        before = self.seen.get((kind, size))
        if before is not None:
            latency = min(latency, before)
            transfer = before - latency
        transfer *= self._scale_bytes()
        return latency * self.latency_ratio * self._scale_hops(kind) + transfer / self.bandwidth_ratio

    def changed(self, change: Change) -> "Link":
        """Return the link after a change."""
        return replace(
            self,
            bandwidth_ratio=self.bandwidth_ratio * (change.bandwidth_ratio or 1.0),
            latency_ratio=self.latency_ratio * (change.latency_ratio or 1.0),
            ranks=change.shard_ranks or self.group_size,
        )

    def with_latency_share(self, share: float) -> "Link":
        """Return the link with ``share`` of a message's time as alpha, for kinds whose alpha is not known."""
        lines = {
            kind: line if line.known else _split_latency(line, share, self.seen, kind)
            for kind, line in self.lines.items()
        }
        return replace(self, lines=lines)

    def with_most_latency(self) -> "Link":
        """Return the link with each kind's smallest message time as latency, the upper bound."""
        min_latency = {
            kind: min((size, ns) for (each, size), ns in self.seen.items() if each == kind)[1]
            for kind in {each for each, _ in self.seen}
        }
        lines = {
            kind: replace(line, latency_ns=max(line.latency_ns, min_latency.get(kind, 0.0)))
            for kind, line in self.lines.items()
        }
        return replace(self, lines=lines)

    @property
    def is_known(self) -> bool:
        """True if alpha and beta could be separated for every kind."""
        return all(line.known for line in self.lines.values())

    def _find_line(self, kind: str) -> tuple[LinkLine, float]:
        """Return the line of the kind, or the line of another kind with the ratio of their bus factors."""
        if kind in self.lines:
            return self.lines[kind], 1.0
        other = next(each for each in _KINDS if each in self.lines)
        own_factor, other_factor = (
            bus_factor(CollectiveKind(each), self.group_size) for each in (kind, other)
        )
        return self.lines[other], own_factor / other_factor if other_factor else 1.0

    def _scale_bytes(self) -> float:
        """Return the change in bytes per rank with the group size: a ring of n ranks moves (n-1)/n."""
        if not self.ranks or self.ranks == self.group_size:
            return 1.0
        return (1 - 1 / self.ranks) / (1 - 1 / self.group_size)

    def _scale_hops(self, kind: str) -> float:
        if not self.ranks or self.ranks == self.group_size:
            return 1.0
        return (self.ranks - 1) / (self.group_size - 1)


def fit_link(analysis: RunAnalysis, messages: ShardingMessages) -> Link | None:
    """Fit the link of the sharding's messages; None if no message time is known."""
    rows = messages.all_sharding
    rows = rows.at(rows.bools("matched") & ~rows.bools("first_of_window"))
    each = rows.at(np.sort(rows.group_by("instance").first))
    each = each.at(each.floats("intrinsic_ns") > 0)
    if not len(each):
        each = rows.with_columns(intrinsic_ns=rows.floats("transfer_ns"))
        each = each.at(each.floats("intrinsic_ns") > 0)
    if not len(each):
        return None
    lines, fitted = {}, []
    # The time of tiny messages (a norm, the loss) in groups of the same size; None if too few.
    tiny = messages.others
    tiny = tiny.at((tiny.ints("group_size") == messages.group_size) & tiny.bools("matched"))
    is_tiny = (tiny.ints("bytes") > 0) & (tiny.ints("bytes") <= _TINY_BYTES)
    tiny_ns = tiny.floats("intrinsic_ns")[is_tiny & (tiny.floats("intrinsic_ns") > 0)]
    min_latency = float(np.median(tiny_ns)) if len(tiny_ns) >= _MIN_TINY else None
    kinds, sizes = each.texts("kind"), each.ints("bytes")
    for places in Groups(kinds).split():
        kind = kinds[places[0]]
        line, fitted_link = _fit_line(analysis, kind, each.at(places), min_latency)
        lines[kind] = line
        fitted.append(replace(fitted_link, busbw_bytes_per_s=_bus_bandwidth(line, kind, messages.group_size)))
    seen = {
        (kinds[places[0]], float(sizes[places[0]])): _robust_mean_ns(each.floats("intrinsic_ns")[places])
        for places in Groups(kinds, sizes).split()
    }
    return Link(lines=lines, seen=seen, group_size=messages.group_size, fitted=tuple(fitted))


def _robust_mean_ns(times: Floats) -> float:
    """Return the mean, because delays add up; outliers count as a few medians."""
    return float(np.minimum(times, _OUTLIER_FACTOR * np.median(times)).mean())


def _fit_line(
    analysis: RunAnalysis, kind: str, rows: Columns, min_latency: float | None
) -> tuple[LinkLine, FittedLink]:
    groups = rows.texts("group").list_distinct()
    good = [
        fit
        for fit in analysis.time.fits
        if fit.kind == kind and fit.group in groups and fit.residual_ratio <= _RESIDUAL_RATIO
    ]
    good = [fit for fit in good if fit.algbw_bytes_per_s]
    if good:
        fit = good[0]
        line = LinkLine(
            latency_ns=float(fit.latency_ns), ns_per_byte=1e9 / (fit.algbw_bytes_per_s or 1.0), known=True
        )
        residual, how = fit.residual_ratio, f"fit over {fit.sizes} sizes"
    else:
        times, sizes = rows.floats("intrinsic_ns"), rows.floats("bytes")
        latency = min(min_latency or 0.0, float(np.median(times)))
        line = LinkLine(
            latency_ns=latency,
            ns_per_byte=float(np.median(np.maximum(0.0, times - latency) / sizes)),
            known=min_latency is not None,
        )
        residual = float(np.median(np.abs(times - line.latency_ns - line.ns_per_byte * sizes) / times))
        how = "single size: latency and bandwidth cannot be separated"
        if min_latency is not None:
            how = "single size, latency from messages of a few bytes"
    return line, FittedLink(
        kind=kind,
        group=groups[0],
        latency_ns=round(line.latency_ns),
        busbw_bytes_per_s=None,
        messages=len(rows),
        residual_ratio=residual,
        how=how,
    )


def _bus_bandwidth(line: LinkLine, kind: str, ranks: int) -> float | None:
    factor = bus_factor(CollectiveKind(kind), ranks)
    return 1e9 / line.ns_per_byte * factor if line.ns_per_byte > 0 and factor else None


def _split_latency(
    line: LinkLine, share: float, seen: Mapping[tuple[str, float], float], kind: str
) -> LinkLine:
    times = [ns for (each, _), ns in seen.items() if each == kind]
    typical = float(np.median(times)) if times else 0.0
    return LinkLine(latency_ns=share * typical, ns_per_byte=(1 - share) * line.ns_per_byte, known=False)


class MessageCosts(Struct, frozen=True, kw_only=True):
    """Costs per message, in ns.

    ``launch_ns``: thread time of a launch, by kind. ``pick_up_ns``: from launch to start on an idle link.
    ``queue_ns``: from the end of one message to the start of the next in the queue. ``wake_ns``: from the end
    of a message until the waiting thread resumes. ``lanes``: True if each kind has its own link.
    """

    launch_ns: dict[str, float]
    pick_up_ns: float
    queue_ns: float
    wake_ns: float
    lanes: bool


def measure_costs(rows: Columns, *, device: bool) -> MessageCosts:
    """Return the median costs over all messages."""
    launch, start, end = (rows.floats(name) for name in ("launch_end_ns", "start_ns", "end_ns"))
    before, lanes = _previous_ends(rows)
    idle = ~np.isnan(launch) & (before < launch)
    queued = ~np.isnan(launch) & (before >= launch)
    wait, woken = (rows.floats(name) for name in ("wait_start_ns", "wait_end_ns"))
    slept = ~np.isnan(wait) & (wait < end - _NO_SLEEP_NS)
    is_timed = rows.known("launch_end_ns") & rows.known("launch_start_ns")
    calls_ns = (rows.ints("launch_end_ns") - rows.ints("launch_start_ns"))[is_timed]
    call_kinds = rows.texts("kind").at(is_timed)
    return MessageCosts(
        launch_ns={
            kind: 0.0 if device else _median_or(calls_ns[call_kinds.equals(kind)])
            for kind in rows.texts("kind").list_distinct()
        },
        pick_up_ns=0.0 if device else _median_or((start - launch)[idle]),
        queue_ns=0.0 if device else _median_or((start - before)[queued]),
        wake_ns=_median_or((woken - end)[slept], 0.0 if device else _WAKE_NS),
        lanes=lanes,
    )


def _median_or(values: Int64s | Floats, default: float = 0.0) -> float:
    return max(0.0, float(np.median(values))) if len(values) else default


def _previous_ends(rows: Columns) -> tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", bool]:
    """Return the end of the previous message on the same rank, and True if kinds run concurrently."""
    before = np.full(len(rows), -np.inf)
    rank, kind = rows.ints("rank"), rows.texts("kind").codes
    start, end = rows.floats("start_ns"), rows.floats("end_ns")
    overlap_ns = total = 0.0
    for each_rank in np.unique(rank):
        indices = np.flatnonzero(rank == each_rank)
        indices = indices[np.argsort(start[indices], kind="stable")]
        latest_end = np.maximum.accumulate(end[indices])
        before[indices[1:]] = latest_end[:-1]
        overlaps = np.maximum(0.0, np.minimum(latest_end[:-1], end[indices[1:]]) - start[indices[1:]])
        overlap_ns += float(overlaps[kind[indices[1:]] != kind[indices[:-1]]].sum())
        total += float((end[indices] - start[indices]).sum())
    return before, overlap_ns > _CONCURRENT_RATIO * max(1.0, total)
