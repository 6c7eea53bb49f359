"""Summarize host activity during idle time (the ``host`` table), per rank and for most ranks.

A single late host is a matter of the late-rank rules. A value here is the time that at least three quarters
of the ranks lose in the same step (all ranks, up to four), averaged over the steps. Only recurring time
counts: a single occurrence is not a cost per step.

*Late hosts.* The time that devices (or CPU ranks' threads) lose because hosts launch late is the idle time
with an empty queue and an active host, on most ranks. On a CPU rank: the training-loop thread is in no
operator, wait or collective launch, and certainly used its processor. If one host is later than the others
but just as fast, only its rank is idle while the others wait for it: this also limits the pace of all hosts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import Fact, RunAnalysis, Untested, make_fact, make_untested, mean_wall_ns
from zprof.analysis.columns import Columns, Floats, Groups, find_places
from zprof.analysis.intervals import Int64s
from zprof.analysis.memory.largest_rank import find_largest_rank
from zprof.analysis.time.host_calls import WaitKind
from zprof.analysis.time.own_time import OwnTime, measure_own_time
from zprof.analysis.time.program_lines import (
    LineShare,
    locate_device_waits,
    locate_idle,
    locate_reads,
    name_place,
)
from zprof.base.formatting import format_ns
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.gaps import GapKind
from zprof.model.memory import AllocatorCounters

#: Maximum share of ranks that may lose less.
MAX_EXEMPT_RANKS_RATIO = 0.25
#: Maximum mean as a multiple of the median step: a larger mean comes from few steps.
_MAX_OVER_MEDIAN = 2.0
#: Minimum share of the step without a processor; two ranks on two otherwise idle processors had up to 5 %.
_MIN_QUEUED_RATIO = 0.10
#: Columns that count waits; their longest occurrence is 1.
_COUNT_COLUMNS = ("dry_syncs", "held_reads")
#: Minimum bytes per step in each direction to count as moved state.
_MIN_STATE_BYTES = 1 << 20
#: Maximum number of reported wait groups, and their minimum share of the total cost.
_MAX_GROUPS = 4
_MIN_GROUP_RATIO = 0.05
#: Above 1, because ranks that run out of work at different times wait for each other.
_MAX_SAVING_RATIO = 1.15

LINE_REMEDY = "take what that line waits for or computes out of the step: into a thread, or every N steps"


def mean_of_most_ranks(analysis: RunAnalysis, *columns: str) -> float:
    """Return the recurring sum of ``columns`` that most ranks reach, averaged over steps."""
    return mean_of_recurring(_most_ranks_per_step(analysis, columns))


def mean_of_recurring(values: Int64s | Floats) -> float:
    """Return the mean cost over the steps, without single occurrences.

    The largest step may contain a profiler start, a first batch or a first library call, so it is capped at
    the second largest. A cost that is absent from most steps, or far lower in the typical step, does not
    recur.
    """
    if len(values) < 2:
        return float(values.sum())
    times = values.astype(np.float64)
    second = np.partition(times, -2)[-2]
    return min(float(np.minimum(times, second).mean()), _MAX_OVER_MEDIAN * float(np.median(times)))


def median_of_most_ranks(analysis: RunAnalysis, *columns: str) -> float:
    """Return the sum of ``columns`` that most ranks reach in the median step, without occasional time."""
    values = _most_ranks_per_step(analysis, columns)
    return float(np.median(values)) if len(values) else 0.0


def _most_ranks_per_step(analysis: RunAnalysis, columns: Sequence[str]) -> Floats:
    """Return the value that most ranks reach; for a single step, without its longest occurrence.

    The longest occurrence is taken over all of these parts; it is 1 for counted waits. One step cannot show
    that a cost recurs between steps, only that it recurs within the step.
    """
    rows = analysis.host
    step, totals = rows.ints("step"), sum_columns(rows, columns)
    if len(np.unique(step)) == 1:
        parts = [f"{name.removesuffix('_ns')}_largest_ns" for name in columns]
        longest = [rows.floats(name) for name in parts if name in rows]
        counted = [rows.ints(name) > 0 for name in columns if name in _COUNT_COLUMNS]
        totals = totals - np.max([np.zeros(len(rows)), *longest], axis=0) - sum(counted, np.zeros(len(rows)))
    return _reached_by_most_ranks(step, totals)


def sum_columns(rows: Columns, columns: Sequence[str]) -> Floats:
    """Return the sum of these columns in each row."""
    return np.sum([rows.floats(name) for name in columns], axis=0)


def _reached_by_most_ranks(steps: Int64s, values: Floats) -> Floats:
    """Return the lower quantile of each step's values, by step, with a single sort."""
    order = np.lexsort((values, steps))
    _, first, ranks = np.unique(steps[order], return_index=True, return_counts=True)
    place = first + (MAX_EXEMPT_RANKS_RATIO * (ranks - 1)).astype(np.int64)
    return values[order][place]


def find_worst_rank_mean(analysis: RunAnalysis, *columns: str) -> tuple[int, float]:
    """Return the rank with the largest mean per step, and its mean."""
    rows = analysis.host
    ranks = rows.group_by("rank")
    means = ranks.mean(sum_columns(rows, columns))
    worst = int(means.argmax())
    return int(rows.ints("rank")[ranks.first[worst]]), float(means[worst])


def has_device(analysis: RunAnalysis) -> bool:
    """Return True if the ranks compute on devices."""
    return bool(analysis.host.bools("on_device").any())


def is_host_inflated(analysis: RunAnalysis) -> bool:
    """Return True if recording Python calls slowed the hosts."""
    return bool(analysis.host.bools("has_stacks").any())


def is_short_of_processors(analysis: RunAnalysis) -> bool:
    """Return True if CPU ranks were ready but without a processor for a tenth of the step.

    gloo's threads then lack a processor, too, and transfer times depend on the scheduler.
    """
    if analysis.run.device != "cpu" or not len(analysis.host):
        return False
    return bool(analysis.host.ints("queued_ns").mean() >= _MIN_QUEUED_RATIO * mean_wall_ns(analysis))


def count_processors_per_rank(analysis: RunAnalysis) -> int | None:
    """Return the host's processors per rank on it, None if not recorded."""
    environment = analysis.source.manifest.environment if analysis.source is not None else {}
    count = environment.get("processors", "")
    hosts = list(analysis.hosts.values())
    ranks_per_host = max((hosts.count(host) for host in set(hosts)), default=analysis.run.world_size)
    return max(1, int(count) // max(1, ranks_per_host)) if count.isascii() and count.isdigit() else None


def is_inference(analysis: RunAnalysis) -> bool:
    """Return True if no rank has a backward pass or an optimizer, so training advice does not apply."""
    return bool(analysis.host.bools("is_inference").all())


def moves_state(analysis: RunAnalysis) -> bool:
    """Return True if devices and hosts exchange at least 1 MiB per step in each direction."""
    return all(
        mean_of_most_ranks(analysis, name) >= _MIN_STATE_BYTES
        for name in ("to_host_bytes", "to_device_bytes")
    )


def find_single_occurrence(
    analysis: RunAnalysis, min_ratio: float, *columns: str, what: str = ""
) -> Untested | None:
    """Return why a cost seen once in a one-step window is unknown, None if it is too small.

    ``what``: the name of the occurrence, shown after a colon.
    """
    lost, rows = 0.0, analysis.host
    for column in columns:  # what most ranks have and does not recur, as the mean per step
        values = _reached_by_most_ranks(rows.ints("step"), rows.floats(column))
        mean = float(values.mean()) if len(values) else 0.0
        lost += max(0.0, mean - mean_of_most_ranks(analysis, column))
    if _has_several_steps(analysis) or lost < min_ratio * mean_wall_ns(analysis):
        return None
    return make_untested("single_occurrence", lost=lost, what=what)


def _has_several_steps(analysis: RunAnalysis) -> bool:
    return len(np.unique(analysis.host.ints("step"))) > 1


def rate_confidence(
    analysis: RunAnalysis, share: float, high_share: float, medium_share: float
) -> Confidence:
    """Return HIGH from ``high_share``, MEDIUM from ``medium_share``, else LOW; never HIGH for one step."""
    if share >= high_share and _has_several_steps(analysis):
        return Confidence.HIGH
    return Confidence.MEDIUM if share >= medium_share else Confidence.LOW


def find_missing_host(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if hosts or their launches were not recorded, else None."""
    if not len(analysis.host):
        return make_untested("hosts_not_recorded")
    if not analysis.host.bools("launches_seen").all():
        return make_untested("launches_not_shown")
    return None


class WaitGroup(Struct, frozen=True, kw_only=True):
    """Waits of one operator and kind; means per rank and step. ``stalled_ns``: their cost to the device."""

    operator: str
    kind: WaitKind
    count: float
    wait_ns: float
    stalled_ns: float


def list_wait_groups(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> list[WaitGroup]:
    """Return the device waits by operator and kind, costliest first, without negligible groups.

    Args:
        analysis: The run.
        ranks: Its ranks; default: all.
    """
    rows, steps = analysis.waits, analysis.steps
    if ranks:
        rows, steps = (table.at(np.isin(table.ints("rank"), ranks)) for table in (rows, steps))
    if not len(rows) or not len(steps):
        return []
    operator, kind = rows.texts("operator"), rows.texts("kind")
    groups = Groups(operator, kind)
    wait_ns, stalled_ns = groups.sum(rows.ints("wait_ns")), groups.sum(rows.ints("stalled_ns"))
    order = np.lexsort((-wait_ns, -stalled_ns))
    order = order[stalled_ns[order] >= _MIN_GROUP_RATIO * stalled_ns.sum()][:_MAX_GROUPS]
    return [
        WaitGroup(
            operator=operator[int(groups.first[group])],
            kind=WaitKind(kind[int(groups.first[group])]),
            count=float(groups.sizes[group] / len(steps)),
            wait_ns=float(wait_ns[group] / len(steps)),
            stalled_ns=float(stalled_ns[group] / len(steps)),
        )
        for group in order
    ]


def make_wait_facts(groups: Sequence[WaitGroup]) -> list[Fact]:
    """Return two facts per group: the host's wait, and its cost to the device."""
    return [
        fact
        for number, group in enumerate(groups, 1)
        for fact in (
            make_fact(
                "wait_{number}_host_blocked_per_step",
                group.wait_ns,
                number=number,
                operator=group.operator,
                kind=group.kind,
                count=f"{group.count:.3g}",
            ),
            make_fact("wait_{number}_stalled_per_step", group.stalled_ns, number=number),
        )
    ]


def locate_host_waits(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that waits longest for the device, or on CPU ranks the line that reads a scalar."""
    locate = locate_device_waits if has_device(analysis) else locate_reads
    return locate(analysis.source, ranks)


def describe_longest_wait(analysis: RunAnalysis) -> str:
    """Describe the longest wait by call and operator; empty if unknown."""
    if not len(analysis.waits):
        return ""
    waits = analysis.waits
    longest = int(waits.ints("wait_ns").argmax())
    operator, kind = waits.texts("operator")[longest], waits.texts("kind")[longest]
    return f": {operator}, {kind}, {format_ns(int(waits.ints('wait_ns')[longest]))}"


class AllocatorCalls(Struct, frozen=True, kw_only=True):
    """Allocator calls of the rank that loses the most time, as means per step.

    ``steps_with_free_ratio``: share of its ``steps`` with a free. ``lost_ns``: device idle time in these
    calls; ``lost_ratio``: its share of the step. ``exposed_ns``: transfer with an empty queue during the
    calls.
    """

    rank: int
    allocations: float
    frees: float
    steps_with_free_ratio: float
    steps: int
    lost_ns: float
    lost_ratio: float
    exposed_ns: float


def read_allocator_calls(analysis: RunAnalysis) -> AllocatorCalls | None:
    """Read the worst rank's allocator calls, None if the trace has no device or no launches."""
    rows = analysis.host
    if not len(rows) or not (rows.bools("on_device") & rows.bools("launches_seen")).all():
        return None
    slowest, _ = find_worst_rank_mean(analysis, "allocator_ns")
    most_freeing, _ = find_worst_rank_mean(analysis, "gives")
    rank = slowest if rows.ints("allocator_ns").any() else most_freeing
    rows, wall_ns = rows.at(rows.ints("rank") == rank), mean_wall_ns(analysis)
    lost_ns = mean_of_recurring(rows.floats("allocator_ns"))
    return AllocatorCalls(
        rank=rank,
        allocations=float(rows.ints("takes").mean()),
        frees=float(rows.ints("gives").mean()),
        steps_with_free_ratio=float((rows.ints("gives") > 0).mean()),
        steps=len(rows),
        lost_ns=lost_ns,
        lost_ratio=lost_ns / wall_ns if wall_ns else 0.0,
        exposed_ns=mean_of_recurring(rows.floats("allocator_exposed_ns")),
    )


def find_worst_counters(analysis: RunAnalysis) -> AllocatorCounters | None:
    """Return the counters of the device with the most retries, None without counters."""
    largest = find_largest_rank(analysis)
    counters = [entry for entry in analysis.memory.counters if entry.device != "cpu"]
    if largest is None or not largest.on_gpu or not any(entry.retries is not None for entry in counters):
        return None
    return max(counters, key=lambda entry: (entry.retries or 0, entry.ooms or 0))


class LateHosts(Struct, frozen=True, kw_only=True):
    """Means per step. ``typical_ns``: the median step's idle time. ``unhidden_ns``: collectives during the
    idle gaps that no compute could hide. ``communication_ns``: all exposed wait and transfer. ``queued_ns``:
    CPU ranks' threads were ready but had no processor; included in ``wall_ns`` but not in ``idle_ns``.
    """

    wall_ns: float
    queued_ns: float
    idle_ns: float
    typical_ns: float
    exposed_ns: float
    unhidden_ns: float
    communication_ns: float

    @property
    def unqueued_wall_ns(self) -> float:
        """The step time without waits for a processor; at least 1."""
        return max(1.0, self.wall_ns - self.queued_ns)

    @property
    def share(self) -> float:
        """The idle time as a share of the step."""
        return self.idle_ns / self.unqueued_wall_ns

    @property
    def typical_share(self) -> float:
        """The median step's idle time as a share of the step."""
        return self.typical_ns / self.unqueued_wall_ns

    @property
    def max_saving_ns(self) -> float:
        """The maximum saving by faster hosts: the idle time, and communication exposed by late launches."""
        return _MAX_SAVING_RATIO * (self.idle_ns + self.communication_ns)

    @property
    def lost_ns(self) -> float:
        """The idle time with its part of waits for a processor, and transfer exposed by late launches."""
        return self.share * self.wall_ns + self.exposed_ns


def measure_late_hosts(analysis: RunAnalysis) -> LateHosts:
    """Measure the idle time caused by slow launches on most ranks, once per analysis."""
    return analysis.compute_once(_measure_late_hosts)


def _measure_late_hosts(analysis: RunAnalysis) -> LateHosts:
    columns = list_launch_columns(analysis)
    shared_loss = _measure_waits_for_one_host(analysis, columns)
    mean_loss, median_loss = (
        (float(shared_loss.mean()), float(np.median(shared_loss))) if len(shared_loss) else (0.0, 0.0)
    )
    steps, host = analysis.steps, analysis.host
    under_collectives = [name for name in host.names if name.endswith("_under_ns")]
    hidden_by_compute_ns = steps.ints("overlapped_ns").mean() - sum_columns(host, under_collectives).mean()
    available_ns = max(0.0, float(steps.ints("compute_ns").mean() - max(0.0, hidden_by_compute_ns)))
    return LateHosts(
        wall_ns=mean_wall_ns(analysis),
        queued_ns=0.0 if has_device(analysis) else float(analysis.host.ints("queued_ns").mean()),
        idle_ns=max(mean_of_most_ranks(analysis, *columns), mean_loss),
        typical_ns=max(median_of_most_ranks(analysis, *columns), median_loss),
        exposed_ns=mean_of_most_ranks(analysis, "launch_exposed_ns"),
        unhidden_ns=max(0.0, mean_of_most_ranks(analysis, "launch_under_ns") - available_ns),
        communication_ns=float(sum_columns(steps, ("exposed_wait_ns", "exposed_transfer_ns")).mean()),
    )


def list_launch_columns(analysis: RunAnalysis) -> list[str]:
    """List the columns of idle time caused by slow launches.

    An optimizer that computes on the CPU is offloaded and does not count; one that only launches slowly does.
    """
    return ["launch_ns"] if moves_state(analysis) else ["launch_ns", "optimizer_active_ns"]


def find_idle_line(analysis: RunAnalysis) -> LineShare | None:
    """Return the line on which hosts spend time outside operators, found once per analysis."""
    return analysis.compute_once(_locate_idle)


def _locate_idle(analysis: RunAnalysis) -> LineShare | None:
    return locate_idle(analysis.source, analysis.tracks)


def _measure_waits_for_one_host(analysis: RunAnalysis, columns: list[str]) -> Floats:
    """Measure, per step, the time lost by one rank's host at the common pace while the others waited.

    Empty on CPU ranks, and if the differences between hosts are unknown.
    """
    own_time = measure_own_time(analysis) if has_device(analysis) and analysis.run.world_size > 1 else None
    if own_time is None or not own_time.is_host_known or not len(own_time.numbers):
        return np.zeros(0)
    lost_ns = _make_step_table(own_time, analysis.host, columns)
    waited_ns = _make_step_table(own_time, analysis.steps, ["exposed_wait_ns"])
    common_idle = np.clip(lost_ns - np.clip(own_time.idle, 0.0, None), 0.0, None).max(axis=1)
    delayed_ns: Floats = np.quantile(lost_ns + waited_ns, MAX_EXEMPT_RANKS_RATIO, axis=1, method="lower")
    return np.minimum(common_idle, delayed_ns)


def _make_step_table(own_time: OwnTime, rows: Columns, columns: list[str]) -> Floats:
    """Return the sum of these columns for each step (row) and rank (column) in the own time."""
    wanted = np.repeat(own_time.numbers, len(own_time.ranks)), np.tile(own_time.ranks, len(own_time.numbers))
    places = find_places(wanted, (rows.ints("step"), rows.ints("rank")))
    return sum_columns(rows, columns)[places].reshape(len(own_time.numbers), len(own_time.ranks))


def find_unseen_host(analysis: RunAnalysis, hosts: LateHosts, min_ratio: float) -> Untested | None:
    """Return why it is unknown if hosts are late: most hosts' activity is unrecorded for much of the step."""
    if not has_device(analysis):
        return _find_unseen_thread(analysis, hosts, min_ratio)
    unseen_ns = min(mean_of_most_ranks(analysis, "unseen_ns"), median_of_most_ranks(analysis, "unseen_ns"))
    share = unseen_ns / hosts.wall_ns
    if share < min_ratio:
        return None
    idle = find_idle_line(analysis)
    return _make_unseen("host_not_seen", idle, unseen=unseen_ns, share=share)


def _find_unseen_thread(analysis: RunAnalysis, hosts: LateHosts, min_ratio: float) -> Untested | None:
    """Return why it is unknown if most CPU ranks ran Python for much of the step."""
    columns = [*list_launch_columns(analysis), "unseen_ns"]
    between_ns = min(mean_of_most_ranks(analysis, *columns), median_of_most_ranks(analysis, *columns))
    share = between_ns / hosts.wall_ns
    if share < min_ratio:
        return None
    amounts: dict[str, Any] = {"between": between_ns, "share": share, "ran": hosts.idle_ns}
    if not analysis.host.bools("is_timed").all():
        return make_untested("thread_not_timed", **amounts)
    ran = hosts.idle_ns >= 1
    if not is_short_of_processors(analysis):
        key = "thread_ran_elsewhere" if ran else "thread_may_not_have_run"
        return _make_unseen(key, find_idle_line(analysis), **amounts)
    return make_untested(
        "thread_waited_and_ran" if ran else "thread_waited",
        kind=GapKind.BUSY_PROCESSORS,
        queued=hosts.queued_ns,
        queued_share=hosts.queued_ns / hosts.wall_ns,
        **amounts,
    )


def _make_unseen(key: str, idle: LineShare | None, **amounts: Any) -> Untested:
    """Return why a host's activity is unknown, with the program line where it spent most of that time."""
    if idle is None:
        return make_untested(key, **amounts)
    place = name_place(idle.location)
    return make_untested(f"{key}_at_line", at_line=idle.share, place=place, remedy=LINE_REMEDY, **amounts)
