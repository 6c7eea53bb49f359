"""Find message times of a run: measured times, link latencies, and lines fitted over sizes.

Measured. A kind's latency in a group comes from the fit over message sizes, else from tiny messages in groups
of the same ranks, which use the same links. With a single message size, latency and bandwidth cannot be
separated. A latency counts as high only if a fit resolves it or tiny messages show it; gathers and
reduce_scatters share a line; small groups take the latency of larger groups, scaled by hops.

The normal range follows NCCL's ring model (src/graph/tuning.cc): 8.4 us, plus for each hop 3.4 us over
NVLink or 14 us over a network. A latency is abnormal if it exceeds the network value by 50 us: the margin
covers slower transports (sockets) and busy hosts.

Changed. A message with a measured kind and size takes its measured mean, of which only the changed part is
scaled; other sizes follow the kind's line. A kind that the run does not send uses the bus bandwidth of a
measured kind:

    T(kind, S) = latency + S * bus_factor(kind, N) / busbw

For planned groups, which no run has measured, see :mod:`zprof.step.from_plan`.
"""

from collections.abc import Collection, Mapping, Set

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis, get_clock_uncertainty_ns
from zprof.analysis.columns import Columns, Floats, Groups, Texts
from zprof.analysis.intervals import Intervals, covered, intervals
from zprof.analysis.time.collective_times import fit_line
from zprof.analysis.time.decomposition import select_kind
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.plan import Change, FittedLink
from zprof.model.time import LinkFit

_BASE_NS, _NVLINK_HOP_NS, _NETWORK_HOP_NS = 8_400.0, 3_400.0, 14_000.0
_SLACK_NS = 50_000.0
#: A fit is ignored with fewer messages, or if it misses the median message by more than this share.
_MIN_FIT_MESSAGES, _MAX_FIT_RESIDUAL_RATIO = 8, 0.25
#: The latency of a group is resolved if it is clearly above the residual.
_MIN_LATENCY_TO_RESIDUAL = 3.0
#: Maximum share of transfer time that overlaps with other groups' messages, which slow each other down.
MAX_SHARED_RATIO = 0.1
#: Messages up to this size (a norm, the loss) are pure latency.
_TINY_BYTES = 1024
#: In both, each rank sends the same amount: one pass around the ring.
_RING_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
_KINDS = (*_RING_KINDS, CollectiveKind.ALL_REDUCE)
#: Converts the median distance from the mean to a standard deviation; and the tolerated error of an estimate
#: in standard deviations.
_DEVIATION_OF_MEDIAN, _MAX_STANDARD_ERRORS = 1.48, 2.0
#: Without recorded sizes, all_reduces count as scalars if there are at most this many per step and they are
#: faster than this quantile of the rest.
_SCALARS_PER_STEP, _FASTEST_QUANTILE, _MANY_MESSAGES = 2.0, 0.05, 8
#: Messages longer than this multiple of the median were delayed by something else.
_OUTLIER_FACTOR = 3.0


def measure_transfers(analysis: RunAnalysis, rows: Columns) -> Columns:
    """Return the first row of each collective recorded on all its ranks, by instance, with ``elapsed_ns``.

    ``elapsed_ns`` is the time from the last start to the first end.
    """
    chosen = np.flatnonzero(rows.bools("matched") & ~rows.bools("first_of_window"))
    instances = Groups(rows.ints("instance")[chosen])
    last_start_ns = instances.max(rows.ints("start_ns")[chosen])
    elapsed_ns = (instances.min(rows.ints("end_ns")[chosen]) - last_start_ns).astype(np.float64)
    is_clear = elapsed_ns > max(1, 2 * get_clock_uncertainty_ns(analysis))
    numbers, first = np.unique(rows.ints("instance"), return_index=True)
    places = np.searchsorted(numbers, rows.ints("instance")[chosen][instances.first[is_clear]])
    return rows.at(first[places]).with_columns(elapsed_ns=elapsed_ns[is_clear])


def estimate_kind_latency_ns(analysis: RunAnalysis, rows: Columns, kind: str) -> float | None:
    """Return the time of a kind's zero-byte message: from the fit over sizes, else from tiny messages.

    Groups of the same ranks use the same links; a norm or a loss often has its own group. None if unknown.
    """
    fits = _select_fits(analysis, _list_ranks(rows), kind)
    if fits:
        return float(max(fit.latency_ns for fit in fits))
    return _measure_tiny_ns(analysis, _select_same_ranks(analysis, rows))


def _list_ranks(rows: Columns) -> list[str]:
    """Return the ranks of the groups of these rows."""
    return rows.texts("group").map(_get_group_ranks).list_distinct()


def _select_fits(analysis: RunAnalysis, ranks: Collection[str], kind: str | None = None) -> list[LinkFit]:
    """Return the fits of these ranks' groups with enough messages and a good fit."""
    return [
        fit
        for fit in analysis.time.fits
        if _get_group_ranks(fit.group) in ranks
        and kind in (None, fit.kind)
        and fit.messages >= _MIN_FIT_MESSAGES
        and fit.residual_ratio <= _MAX_FIT_RESIDUAL_RATIO
    ]


def _select_same_ranks(analysis: RunAnalysis, rows: Columns) -> Columns:
    """Return the gathers and reductions in all groups with the same ranks as these rows."""
    is_alike = analysis.compute_once(_read_group_ranks).equals(*_list_ranks(rows))
    return select_kind(analysis.collectives.at(is_alike), *_KINDS)


def _measure_tiny_ns(analysis: RunAnalysis, rows: Columns) -> float | None:
    """Return the median time of messages with a few bytes, None if there are none."""
    sizes = rows.ints("bytes")
    tiny = rows.at((sizes > 0) & (sizes <= _TINY_BYTES))
    times = measure_transfers(analysis, tiny).floats("elapsed_ns")
    return float(np.median(times)) if len(times) else None


def _get_group_ranks(group: str) -> str:
    """Return a group's ranks without the suffix that distinguishes groups of the same ranks."""
    return group.split("#", 1)[0]


def _read_group_ranks(analysis: RunAnalysis) -> Texts:
    """Return the ranks of the group of each collective."""
    return analysis.collectives.texts("group").map(_get_group_ranks)


class Latencies(Struct, frozen=True, kw_only=True):
    """Latency per rank group; ``group_by_row``: the ranks of each collective row."""

    by_ranks: Mapping[str, float]
    group_by_row: Texts

    def get_for_row(self, row: int) -> float | None:
        """Return the latency of a row's group, or of the only known group for a stream; None if unknown."""
        known = self.by_ranks.get(self.group_by_row[row])
        if known is None and len(self.by_ranks) == 1 and self.group_by_row[row].startswith("stream"):
            return next(iter(self.by_ranks.values()))
        return known


def expected_latency_ns(ranks: int) -> tuple[float, float]:
    """Return the latency of a ring within a host, and over a network, in ns."""
    hops = max(1, ranks - 1)
    return _BASE_NS + hops * _NVLINK_HOP_NS, _BASE_NS + hops * _NETWORK_HOP_NS


def max_normal_latency_ns(ranks: int) -> float:
    """Return the maximum latency of a ring of ``ranks`` ranks that is still considered normal, in ns."""
    return _SLACK_NS + expected_latency_ns(ranks)[1]


def read_latencies(analysis: RunAnalysis) -> Latencies:
    """Return each group's latency, from fits over sizes and from almost empty messages.

    They are read once per analysis.
    """
    return analysis.compute_once(_read_latencies)


def _read_latencies(analysis: RunAnalysis) -> Latencies:
    rows = analysis.collectives
    ranks = analysis.compute_once(_read_group_ranks)
    found: dict[str, float] = {}
    groups = Groups(ranks)
    for name, places in zip(ranks.at(groups.first), groups.split(), strict=True):
        group_rows = rows.at(places)
        read = (
            _latency_from_fits(analysis, name, group_rows),
            _latency_from_gathers_and_scatters(analysis, group_rows),
            _measure_tiny_ns(analysis, group_rows),
        )
        known = [each for each in read if each is not None]
        if known:
            found[name] = min(known)  # no message is quicker than the latency
    if not found and not (rows.ints("bytes") > 0).any():
        scalar = _latency_from_scalars(analysis, rows)
        found = dict.fromkeys(ranks.list_distinct(), scalar) if scalar is not None else {}
    found |= _latency_from_larger_groups(set(ranks.list_distinct()) - set(found), found)
    return Latencies(by_ranks=found, group_by_row=ranks)


def _latency_from_fits(analysis: RunAnalysis, ranks: str, rows: Columns) -> float | None:
    """Return the smallest latency from fits that resolve it (a fit over only large messages does not)."""
    found = []
    for fit in _select_fits(analysis, (ranks,)):
        group_rows = select_kind(rows, fit.kind)
        shared = measure_shared_ratio(analysis, group_rows)
        if shared > MAX_SHARED_RATIO:
            continue
        times = measure_transfers(analysis, group_rows).floats("elapsed_ns")
        residual_ns = (fit.residual_ratio + shared) * float(np.median(times)) if len(times) else 0.0
        if fit.latency_ns > _MIN_LATENCY_TO_RESIDUAL * residual_ns:
            found.append(min(float(fit.latency_ns), float(times.min()) if len(times) else float("inf")))
    return min(found) if found else None


def _latency_from_gathers_and_scatters(analysis: RunAnalysis, rows: Columns) -> float | None:
    """Return the common latency of gathers and reduce_scatters, in which each rank sends equally many bytes.

    Gradients may have other types than parameters, so together the kinds cover a wider range of sizes. A fit
    of one kind alone must confirm that both are equally fast.
    """
    group_rows = rows.at(rows.texts("kind").equals(*_RING_KINDS) & (rows.ints("bytes") > 0))
    if len(group_rows) < _MIN_FIT_MESSAGES:
        return None
    shared = measure_shared_ratio(analysis, group_rows)
    sizes, times = _sized_times(analysis, group_rows)
    both = _fit_intercept(sizes, times)
    if both is None or shared > MAX_SHARED_RATIO:
        return None
    residual_ns = both.residual_ns + shared * float(np.median(times))
    if residual_ns > _MAX_FIT_RESIDUAL_RATIO * np.median(times) or both.ns <= _MIN_LATENCY_TO_RESIDUAL * max(
        residual_ns, both.error_ns
    ):
        return None
    by_kind = [_fit_intercept(*_sized_times(analysis, select_kind(group_rows, kind))) for kind in _RING_KINDS]
    upper_bounds = [
        each.upper_bound_ns
        for each in by_kind
        if each is not None and both.ns > _MIN_LATENCY_TO_RESIDUAL * each.error_ns
    ]
    return min(both.ns, float(times.min()), *upper_bounds) if upper_bounds else None


class _Intercept(Struct, frozen=True, kw_only=True):
    """Extrapolated time of a zero-byte message, its standard error, and the median residual of the fit."""

    ns: float
    error_ns: float
    residual_ns: float

    @property
    def upper_bound_ns(self) -> float:
        return self.ns + _MAX_STANDARD_ERRORS * self.error_ns


def _fit_intercept(sizes: Floats, times: Floats) -> _Intercept | None:
    """Extrapolate the fit to size 0; the error grows if the sizes are similar."""
    line = fit_line(sizes, times, min_spread=1.0)
    if line is None:
        return None
    residual_ns = float(np.median(np.abs(times - line.at(sizes))))
    distance = float(sizes.mean() / sizes.std())
    error = _DEVIATION_OF_MEDIAN * residual_ns * float(np.sqrt((1 + distance**2) / len(sizes)))
    return _Intercept(ns=line.latency_ns, error_ns=error, residual_ns=residual_ns)


def _sized_times(analysis: RunAnalysis, rows: Columns) -> tuple[Floats, Floats]:
    transfers = measure_transfers(analysis, rows)
    return transfers.floats("bytes"), transfers.floats("elapsed_ns")


def _latency_from_larger_groups(unknown: Set[str], known: Mapping[str, float]) -> dict[str, float]:
    """Scale the latency of a larger group, per hop, to groups whose ranks it contains."""
    found = {}
    members = {name: frozenset(name.split(",")) for name in (*unknown, *known) if "," in name}
    for name in sorted(unknown & members.keys()):
        hops = len(members[name]) - 1
        estimates = [
            _BASE_NS + max(0.0, known[other] - _BASE_NS) * hops / (len(members[other]) - 1)
            for other in known.keys() & members.keys()
            if members[name] < members[other]
        ]
        if estimates:
            found[name] = min(estimates)
    return found


def measure_shared_ratio(analysis: RunAnalysis, rows: Columns) -> float:
    """Return the share of transfer time in ``rows`` that overlaps with transfers of other rank groups."""
    overlapping = total = 0
    ranks = analysis.compute_once(_read_group_ranks)
    all_rows, rows = (table.pick(("rank", "end_ns", "transfer_ns")) for table in (analysis.collectives, rows))
    is_other = ~ranks.equals(*ranks.at(rows.row).list_distinct())
    others = all_rows.at(np.isin(all_rows.ints("rank"), np.unique(rows.ints("rank"))) & is_other)
    by_rank, own = others.group_by("rank"), rows.group_by("rank")
    places = dict(zip(others.ints("rank")[by_rank.first].tolist(), by_rank.split(), strict=True))
    for rank, mine in zip(rows.ints("rank")[own.first].tolist(), own.split(), strict=True):
        other_transfers = _transfer_intervals(others.at(places.get(rank, np.zeros(0, dtype=np.int64))))
        group_rows = rows.at(mine)
        overlapping += int(covered(other_transfers, *_transfer_intervals(group_rows).T).sum())
        total += int(group_rows.ints("transfer_ns").sum())
    return overlapping / total if total else 0.0


def _transfer_intervals(rows: Columns) -> Intervals:
    return intervals(rows.ints("end_ns") - rows.ints("transfer_ns"), rows.ints("end_ns"))


def _latency_from_scalars(analysis: RunAnalysis, rows: Columns) -> float | None:
    is_reduced = rows.texts("kind").equals("all_reduce")
    steps = max(1, len(analysis.steps))
    rest, times = (
        measure_transfers(analysis, rows.at(chosen)).floats("elapsed_ns")
        for chosen in (~is_reduced, is_reduced)
    )
    if not len(times) or is_reduced.sum() > _SCALARS_PER_STEP * steps:
        return None
    if (~is_reduced).sum() < _MANY_MESSAGES * steps:
        return None
    if len(rest) and np.median(times) > np.quantile(rest, _FASTEST_QUANTILE):
        return None
    return float(np.median(times))


class LinkLine(Struct, frozen=True, kw_only=True):
    """T = latency + bytes * ns_per_byte; ``known`` is True if the two could be separated."""

    latency_ns: float
    ns_per_byte: float
    known: bool


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
        if self.ranks and self.ranks != self.group_size:  # a ring of n ranks moves (n-1)/n in n-1 hops
            transfer *= (1 - 1 / self.ranks) / (1 - 1 / self.group_size)
            latency *= (self.ranks - 1) / (self.group_size - 1)
        return latency * self.latency_ratio + transfer / self.bandwidth_ratio

    def changed(self, change: Change) -> "Link":
        """Return the link after a change."""
        return replace(
            self,
            bandwidth_ratio=self.bandwidth_ratio * (change.bandwidth_ratio or 1.0),
            latency_ratio=self.latency_ratio * (change.latency_ratio or 1.0),
            ranks=change.shard_ranks or self.group_size,
        )

    def with_latency_share(self, share: float) -> "Link":
        """Return the link with ``share`` of a message's time as alpha, for kinds with unknown alpha."""
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
        """Return the kind's line, or another kind's line scaled by the ratio of bus factors."""
        if kind in self.lines:
            return self.lines[kind], 1.0
        other = next(each for each in _KINDS if each in self.lines)
        own_factor, other_factor = (
            bus_factor(CollectiveKind(each), self.group_size) for each in (kind, other)
        )
        return self.lines[other], own_factor / other_factor if other_factor else 1.0


def fit_link(analysis: RunAnalysis, rows: Columns, group_size: int) -> Link | None:
    """Fit the link of the sharding messages ``rows``; None if no message time is known."""
    rows = rows.at(rows.bools("matched") & ~rows.bools("first_of_window"))
    each = rows.at(np.sort(rows.group_by("instance").first))
    each = each.at(each.floats("intrinsic_ns") > 0)
    if not len(each):
        each = rows.with_columns(intrinsic_ns=rows.floats("transfer_ns"))
        each = each.at(each.floats("intrinsic_ns") > 0)
    if not len(each):
        return None
    lines, fitted = {}, []
    kinds, sizes = each.texts("kind"), each.ints("bytes")
    for places in Groups(kinds).split():
        kind = kinds[places[0]]
        lines[kind], fitted_link = _fit_line(analysis, kind, each.at(places), group_size)
        fitted.append(fitted_link)
    seen = {
        (kinds[places[0]], float(sizes[places[0]])): _robust_mean_ns(each.floats("intrinsic_ns")[places])
        for places in Groups(kinds, sizes).split()
    }
    return Link(lines=lines, seen=seen, group_size=group_size, fitted=tuple(fitted))


def _robust_mean_ns(times: Floats) -> float:
    """Return the mean, because delays add up, with outliers capped at a few medians."""
    return float(np.minimum(times, _OUTLIER_FACTOR * np.median(times)).mean())


def _fit_line(
    analysis: RunAnalysis, kind: str, rows: Columns, group_size: int
) -> tuple[LinkLine, FittedLink]:
    fits = [fit for fit in _select_fits(analysis, _list_ranks(rows), kind) if fit.algbw_bytes_per_s]
    if fits:
        ns_per_byte = 1e9 / (fits[0].algbw_bytes_per_s or 1.0)
        line = LinkLine(latency_ns=float(fits[0].latency_ns), ns_per_byte=ns_per_byte, known=True)
        residual, how = fits[0].residual_ratio, f"fit over {fits[0].sizes} sizes"
    else:
        times, sizes = rows.floats("intrinsic_ns"), rows.floats("bytes")
        known_ns = _measure_tiny_ns(analysis, _select_same_ranks(analysis, rows))
        latency = min(known_ns or 0.0, float(np.median(times)))
        ns_per_byte = float(np.median(np.maximum(0.0, times - latency) / sizes))
        line = LinkLine(latency_ns=latency, ns_per_byte=ns_per_byte, known=known_ns is not None)
        residual = float(np.median(np.abs(times - line.latency_ns - line.ns_per_byte * sizes) / times))
        how = "single size: latency and bandwidth cannot be separated"
        if line.known:
            how = "single size, latency from messages of a few bytes"
    factor = bus_factor(CollectiveKind(kind), group_size)
    return line, FittedLink(
        kind=kind,
        group=rows.texts("group").list_distinct()[0],
        latency_ns=round(line.latency_ns),
        busbw_bytes_per_s=1e9 / line.ns_per_byte * factor if line.ns_per_byte > 0 and factor else None,
        messages=len(rows),
        residual_ratio=residual,
        how=how,
    )


def _split_latency(
    line: LinkLine, share: float, seen: Mapping[tuple[str, float], float], kind: str
) -> LinkLine:
    times = [ns for (each, _), ns in seen.items() if each == kind]
    typical = float(np.median(times)) if times else 0.0
    return LinkLine(latency_ns=share * typical, ns_per_byte=(1 - share) * line.ns_per_byte, known=False)
