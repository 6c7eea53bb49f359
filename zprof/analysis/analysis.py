"""Analyse one run: the totals that the report shows and the tables that the rules read.

Also holds what measurements share: rows and means per rank and step without profiler start-up, checks of
whether the recording can be trusted (lost events, ranks that started at different times), and their results
for the causes: facts (numbers), and what is missing to test a cause. The wording of a fact is in the record
of its cause (:mod:`zprof.causes.cause`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.facts import describe_run, find_engine
from zprof.analysis.intervals import Int64s
from zprof.analysis.memory.analyse import analyse_memory
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.collective_times import measure_partial_group
from zprof.analysis.time.compute_passes import NO_COMPUTE_PASSES
from zprof.analysis.time.decomposition import parse_group_ranks
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.passes import NO_PASSES
from zprof.model.endings import RankEnd
from zprof.model.gap_texts import fill_text, make_gap
from zprof.model.gap_texts.untested import UNTESTED_TEXTS
from zprof.model.gaps import Gap, GapKind
from zprof.model.hang import Hang
from zprof.model.memory import Memory
from zprof.model.mesh import ACTIVATION_ROLES
from zprof.model.report import RunFacts, Volume
from zprof.model.time import Time, WindowPolicy
from zprof.model.training import Engine, TrainingFacts
from zprof.run.endings import find_endings
from zprof.run.log_evidence import EVIDENCE_NAME
from zprof.run.manifest import FLIGHT_RECORDER, NCCL_INSPECTOR, OPERATION_TIMELINE
from zprof.run.reader import Run

Result = TypeVar("Result")
#: Column that identifies one collective across ranks (sequence numbers cannot if some ranks lack rows).
INSTANCE = "instance"
#: Below this share of matched collectives, results about ranks waiting for each other are unreliable.
_MIN_MATCHED_RATIO = 0.50
#: Maximum share of collectives without a launch because the window cut it off.
_MAX_UNLAUNCHED_RATIO = 0.01
#: Student's t for a one-sided 99 % bound, by degrees of freedom from 1; the last value is used beyond.
_T_99 = (31.82, 6.96, 4.54, 3.75, 3.36, 3.14, 3.00, 2.90, 2.82, 2.76, 2.72, 2.68, 2.65, 2.62, 2.60)


class RunAnalysis(Struct, frozen=True, kw_only=True, dict=True):
    """All results of the analysis of one run.

    ``steps`` has one row per (rank, step) with the ledger terms in nanoseconds. ``collectives`` has one row
    per collective and rank, on the common clock. ``host`` has one row per rank and step: what the host did
    while its device was idle. ``kernels`` sums each device's kernels by name. ``passes`` lists each gather's
    pass and unit; ``compute_passes``: the computations of a pipeline. ``limiter`` has one row per gather that
    the host delayed, ``waits`` one per host wait for the device. Tables are empty if the recording lacks the
    data. ``hosts``: host name of each rank, if known. ``tracks``: the intervals behind each timed rank's
    sums, for drawing. ``source``: the run itself, for access to single events. ``engine``: the declared
    engine, else the one inferred from events; None if unknown. ``hang``: what the ranks' flight recorders
    show; None without flight recorders. ``endings``: how the ranks of a failed job ended.
    ``expected_bus_bytes_per_s``: the link's bandwidth for large messages, as stated by the user.
    """

    run: RunFacts
    training: TrainingFacts
    time: Time
    memory: Memory
    volume: Volume | None
    steps: Columns
    collectives: Columns
    gaps: tuple[Gap, ...]
    host: Columns = field(default_factory=lambda: Columns({}))
    kernels: Columns = field(default_factory=lambda: Columns({}))
    passes: Columns = NO_PASSES
    compute_passes: Columns = NO_COMPUTE_PASSES
    limiter: Columns = field(default_factory=lambda: Columns({}))
    waits: Columns = field(default_factory=lambda: Columns({}))
    hosts: Mapping[int, str] = field(default_factory=dict)
    tracks: tuple[RankTracks, ...] = ()
    source: Run | None = None
    engine: Engine | None = None
    hang: Hang | None = None
    endings: tuple[RankEnd, ...] = ()
    expected_bus_bytes_per_s: float | None = None

    @cached_property
    def _results(self) -> dict[Callable[["RunAnalysis"], Any], Any]:
        return {}

    def compute_once(self, compute: Callable[["RunAnalysis"], Result]) -> Result:
        """Return ``compute(self)``, cached for all rules that need the same value.

        A changed copy (``msgspec.structs.replace``) starts with an empty cache.
        """
        if compute not in self._results:
            self._results[compute] = compute(self)
        return self._results[compute]


def analyse(run: Run, policy: WindowPolicy = WindowPolicy.STEP) -> RunAnalysis:
    """Measure memory and time of a run, per step or as a single interval.

    Raises:
        BadInput: a table of the run is damaged.
    """
    if run.manifest.source == FLIGHT_RECORDER:
        return _analyse_hang(run)
    if run.manifest.source == OPERATION_TIMELINE:
        return _analyse_operations(run)
    if run.manifest.source == NCCL_INSPECTOR:
        return _analyse_communicators(run)
    time, memory = analyse_time(run, policy), analyse_memory(run)
    analysis = RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=time.time,
        memory=memory.memory,
        volume=time.volume,
        steps=time.steps,
        collectives=time.collectives,
        gaps=(*run.gaps(), *time.gaps, *memory.gaps),
        host=time.host,
        kernels=time.kernels,
        passes=time.passes,
        compute_passes=time.compute_passes,
        limiter=time.limiter,
        waits=time.waits,
        hosts=_list_hosts(run),
        tracks=time.tracks,
        source=run,
        engine=find_engine(run),
        hang=_find_hang(run),
        endings=find_endings(run),
    )
    return _with_groups(analysis)


def _with_groups(analysis: RunAnalysis) -> RunAnalysis:
    """Return the analysis with hosts and roles of its process groups, and what an incomplete one bounds."""
    from zprof.analysis.mesh.measure import measure_mesh
    from zprof.analysis.mesh.roles import find_mesh_gaps

    groups = {entry.group for entry in analysis.time.collectives}
    hosts = {group: count_ranks_by_host(analysis, group) for group in groups}
    collectives = tuple(
        entry if (found := hosts[entry.group]) is None else replace(entry, hosts=len(found))
        for entry in analysis.time.collectives
    )
    analysis = replace(analysis, time=replace(analysis.time, collectives=collectives))
    partial = measure_partial_group(analysis.run, analysis.time.collectives)
    mesh = measure_mesh(analysis)
    gaps = () if mesh is None else find_mesh_gaps(analysis.training.mesh, mesh.groups)
    time = replace(analysis.time, mesh=mesh, partial=partial)
    analysis = _with_slowdown(replace(analysis, time=time, gaps=(*analysis.gaps, *gaps)))
    if mesh is None or not len(analysis.passes):
        return analysis
    rows = select_state_rows(analysis, analysis.collectives).row
    return replace(analysis, passes=analysis.passes.at(np.isin(analysis.passes.ints("row"), rows)))


def list_operations(analysis: RunAnalysis) -> tuple[Columns | None, tuple[Gap, ...]]:
    """Return the operations of a recorded pipeline, and gaps; None without a pipeline, or if unknown."""
    mesh = analysis.time.mesh
    if mesh is None or mesh.bubble is None:
        return None, ()
    from zprof.analysis.slowdown.from_recording import make_operations

    return make_operations(mesh, mesh.bubble, analysis.collectives, analysis.compute_passes)


def _with_slowdown(analysis: RunAnalysis) -> RunAnalysis:
    """Return the analysis with the slowdown of its pipelines, if it has any."""
    operations, gaps = list_operations(analysis)
    slowdown = None
    if operations is not None:
        from zprof.analysis.slowdown.measure import measure_slowdown

        slowdown, gaps = measure_slowdown(operations)
    return replace(analysis, time=replace(analysis.time, slowdown=slowdown), gaps=(*analysis.gaps, *gaps))


def analyse_memory_only(run: Run) -> RunAnalysis:
    """Measure only the memory of a run.

    Raises:
        BadInput: a table of the run is damaged.
    """
    memory = analyse_memory(run)
    return RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=Time(),
        memory=memory.memory,
        volume=None,
        steps=Columns({}),
        collectives=Columns({}),
        gaps=(*run.gaps(), *memory.gaps),
        engine=find_engine(run),
        endings=find_endings(run),
    )


def analyse_time_only(run: Run, policy: WindowPolicy = WindowPolicy.STEP) -> RunAnalysis:
    """Measure only the time of a run.

    Raises:
        BadInput: a table of the run is damaged.
    """
    if run.manifest.source == OPERATION_TIMELINE:
        return _analyse_operations(run)
    if run.manifest.source == NCCL_INSPECTOR:
        return _analyse_communicators(run)
    time = analyse_time(run, policy)
    analysis = RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=time.time,
        memory=Memory(),
        volume=time.volume,
        steps=time.steps,
        collectives=time.collectives,
        gaps=(*run.gaps(), *time.gaps),
        host=time.host,
        kernels=time.kernels,
        passes=time.passes,
        compute_passes=time.compute_passes,
        limiter=time.limiter,
        waits=time.waits,
        hosts=_list_hosts(run),
        tracks=time.tracks,
        source=run,
        engine=find_engine(run),
        endings=find_endings(run),
    )
    return _with_groups(analysis)


def _analyse_hang(run: Run) -> RunAnalysis:
    """Return the analysis of flight-recorder dumps and logs, which contain neither times nor memory."""
    from zprof.analysis.hang.find_hang import list_hang_gaps

    hang = _find_hang(run)
    return RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=Time(),
        memory=Memory(),
        volume=None,
        steps=Columns({}),
        collectives=Columns({}),
        gaps=(*run.gaps(), *list_hang_gaps(hang)),
        source=run,
        hang=hang,
    )


def _analyse_operations(run: Run) -> RunAnalysis:
    """Return the analysis of an operation timeline, which has no tables of single ranks."""
    from zprof.analysis.slowdown.measure import measure_slowdown

    table = run.job_table("operations")
    assert table is not None
    columns = Columns.from_arrow(table)
    slowdown, gaps = measure_slowdown(columns)
    facts = replace(
        describe_run(run),
        ranks_loaded=tuple(np.unique(columns.ints("rank")).tolist()),
        steps=tuple(np.unique(columns.ints("step")).tolist()),
    )
    return RunAnalysis(
        run=facts,
        training=run.manifest.training,
        time=Time(slowdown=slowdown),
        memory=Memory(),
        volume=None,
        steps=Columns({}),
        collectives=Columns({}),
        gaps=(*run.gaps(), *gaps, make_gap("only_operations")),
        source=run,
    )


def _analyse_communicators(run: Run) -> RunAnalysis:
    """Return the analysis of the files of NCCL's Inspector, which have nothing but collectives."""
    from zprof.analysis.communicators.measure import measure_communicators

    table = run.job_table("inspector")
    assert table is not None
    communicators, gaps = measure_communicators(Columns.from_arrow(table))
    return RunAnalysis(
        run=describe_run(run),
        training=run.manifest.training,
        time=Time(communicators=communicators),
        memory=Memory(),
        volume=None,
        steps=Columns({}),
        collectives=Columns({}),
        gaps=(*run.gaps(), *gaps, make_gap("only_collectives")),
        source=run,
    )


def _find_hang(run: Run) -> Hang | None:
    """Return what a stuck job's flight recorders or logs show; None if the run has neither."""
    has_dumps = any(run.has_table(rank, name) for rank in run.ranks for name in ("flight", "flight_group"))
    if not has_dumps and not (run.path / EVIDENCE_NAME).exists():
        return None
    from zprof.analysis.hang.find_hang import find_hang

    return find_hang(run)


def count_ranks_by_host(analysis: RunAnalysis, group: str) -> dict[str, int] | None:
    """Return a group's number of ranks per host, None if ranks or hosts are unknown."""
    ranks = parse_group_ranks(group)
    if not ranks or not ranks <= set(analysis.hosts):
        return None
    return dict(Counter(analysis.hosts[rank] for rank in ranks))


def _list_hosts(run: Run) -> dict[int, str]:
    return {rank: manifest.host for rank, manifest in run.rank_manifests.items() if manifest.host}


class Fact(Struct, frozen=True, kw_only=True):
    """A number behind a claim: the key of its label, and the words that fill the label's placeholders."""

    key: str
    value: float
    rank: int | None = None
    words: Mapping[str, object] = field(default_factory=dict)


def make_fact(key: str, value: float, *, rank: int | None = None, **words: object) -> Fact:
    """Build a fact; ``words`` fill the placeholders of the key and of its label."""
    return Fact(key=key, value=value, rank=rank, words=words)


class Untested(Struct, frozen=True, kw_only=True):
    """Why a cause cannot be tested on a run, and what to record instead."""

    reason: str
    remedy: str
    kind: GapKind = GapKind.UNTESTED_RULE


def make_untested(key: str, /, *, kind: GapKind = GapKind.UNTESTED_RULE, **values: object) -> Untested:
    """Return why a cause cannot be tested: the messages of ``key``, filled with ``values``."""
    reason, remedy = UNTESTED_TEXTS[key]
    return Untested(reason=fill_text(reason, values), remedy=fill_text(remedy, values), kind=kind)


def select_steady_rows(analysis: RunAnalysis) -> Columns:
    """Return the collectives without the window's first ones, which include profiler start-up skew."""
    rows = analysis.collectives
    return rows.at(~rows.bools("first_of_window"))


def select_state_rows(analysis: RunAnalysis, rows: Columns) -> Columns:
    """Return the collectives that may carry states: all except messages of activations."""
    return rows.at(mark_state_rows(analysis, rows)) if len(rows) else rows


def mark_state_rows(analysis: RunAnalysis, rows: Columns) -> Mask:
    """Return which collectives may carry states.

    Groups without a role, and all groups of a job of a single dimension, may carry states.
    """
    mesh = analysis.time.mesh
    names = [] if mesh is None else [group.group for group in mesh.groups if group.role in ACTIVATION_ROLES]
    if not names:
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray(~rows.texts("group").equals(*names))


def measure_queueing_ns(rows: Columns) -> Int64s:
    """Measure how long the host was blocked on each collective while it was queued behind others.

    0 if the recording has no wait spans.
    """
    start = rows.ints("start_ns")
    until = np.where(rows.known("wait_end_ns"), np.minimum(start, rows.ints("wait_end_ns")), start)
    blocked = np.maximum(0, until - rows.ints("wait_start_ns"))
    return np.where(rows.known("wait_start_ns"), blocked, 0)


def mean_per_step(analysis: RunAnalysis, total_ns: float) -> float:
    """Convert a total over all ranks and steps to the mean per rank and step."""
    return float(total_ns) / max(1, len(analysis.steps))


def mean_wall_ns(analysis: RunAnalysis) -> float:
    """Return the mean wall time over ranks and steps, in ns."""
    return float(analysis.steps.floats("wall_ns").mean()) if len(analysis.steps) else 0.0


def count_steps(analysis: RunAnalysis) -> int:
    """Return the window's number of steps, summed over ranks."""
    return len(np.unique(analysis.steps.ints("step"))) if len(analysis.steps) else 0


def max_noise_floor_ns(analysis: RunAnalysis) -> int:
    """Return the noisiest rank's noise floor of durations."""
    return max((rank.noise_floor_ns for rank in analysis.time.per_rank), default=0)


def get_clock_uncertainty_ns(analysis: RunAnalysis) -> int:
    """Return the maximum remaining offset between two ranks' aligned clocks, 0 if not aligned."""
    alignment = analysis.time.alignment
    return alignment.uncertainty_ns if alignment else 0


def has_no_collectives(analysis: RunAnalysis) -> bool:
    """Return True if several ranks ran but no collectives were recorded."""
    return analysis.run.world_size > 1 and not len(analysis.collectives)


def find_missing_collectives(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if several ranks ran but no collectives were recorded, else None."""
    if not has_no_collectives(analysis):
        return None
    return make_untested("no_collective_recorded")


def can_play_kernels(analysis: RunAnalysis) -> bool:
    """Return True if the step has kernels to play; a fix is then proposed only if it gains time."""
    return analysis.source is not None and analysis.run.device != "cpu"


#: The operator that packs gradients into the buffer of a reduction.
GRADIENT_COPY_KERNEL = "chunk_cat"


def select_copy_kernels(analysis: RunAnalysis) -> Columns:
    """Return the kernel rows that are copies."""
    kernels = analysis.kernels
    return kernels.at(~kernels.texts("role").equals("compute")) if len(kernels) else kernels


def list_copy_names(analysis: RunAnalysis) -> frozenset[str]:
    """Return the names of the kernels that are copies."""
    rows = select_copy_kernels(analysis)
    return frozenset(rows.texts("name").list_distinct()) if len(rows) else frozenset()


def measure_matched_ratio(analysis: RunAnalysis) -> float | None:
    """Return the share of collectives matched across ranks, None without collectives or if ranks are missing.

    A rank without a complete step counts as missing: its collectives are not in the window.
    """
    rows = analysis.collectives
    if not len(rows):  # what a hang leaves has no columns either
        return None
    rows = rows.at(rows.ints("group_size") != 1)
    ranks = min(len(analysis.run.ranks_loaded), len(np.unique(analysis.steps.ints("rank"))))
    if not len(rows) or ranks < analysis.run.world_size:
        return None
    return float(rows.bools("matched").mean())


def do_recordings_match(analysis: RunAnalysis) -> bool:
    """Return True if at least half of the collectives were matched, or if the share is unknown."""
    matched = measure_matched_ratio(analysis)
    return matched is None or matched >= _MIN_MATCHED_RATIO


def has_lost_events(analysis: RunAnalysis) -> bool:
    """Return True if recordings do not match because events, including collective launches, were lost."""
    if not len(analysis.collectives) or do_recordings_match(analysis):
        return False
    return float((~analysis.collectives.known("launch_start_ns")).mean()) > _MAX_UNLAUNCHED_RATIO


def measure_start_costs_ns(analysis: RunAnalysis) -> Floats:
    """Measure each rank's exposed wait for other ranks' profilers to start, capped at what the pings allow.

    Only collectives that come first on all of their ranks count. If a rank lost an event, its first recorded
    collective is a later one, and a wait there is not start-up.
    """
    rows = analysis.collectives
    ranks, instances = np.unique(rows.ints("rank")), rows.group_by("instance")
    is_first = instances.min(rows.bools("first_of_window"))[instances.codes] & rows.bools("matched")
    is_first_step = np.isin(rows.ints("step"), rows.ints("step")[is_first])
    groups = rows.group_by("rank", "group", "step")
    first_of_step = np.zeros(len(rows), dtype=np.bool_)
    first_of_step[np.lexsort((rows.ints("start_ns"), groups.codes))[groups.starts]] = True
    first_rows, later_rows = rows.at(is_first), rows.at(~is_first_step)
    later_first_rows = rows.at(first_of_step & ~is_first_step)
    immediate = _sum_beyond_usual(ranks, first_rows, later_first_rows, "exposed_wait_ns")
    # The maximum difference between profiler start times; infinite if not all ranks have pings.
    opened = [tracks.opened_ns for tracks in analysis.tracks if tracks.opened_ns is not None]
    is_known = len(opened) == len(analysis.tracks) > 0
    max_skew_ns = float(max(opened) - min(opened)) if is_known else float("inf")
    if not len(later_first_rows):
        return np.minimum(immediate, max_skew_ns)
    waited_ns = _sum_beyond_usual(ranks, first_rows, later_first_rows, "wait_ns")
    exposed_ns = _sum_beyond_usual(ranks, rows.at(is_first_step), later_rows, "exposed_wait_ns")
    return np.minimum(np.maximum(immediate, np.minimum(waited_ns, exposed_ns)), max_skew_ns)


def _sum_beyond_usual(ranks: Int64s, rows: Columns, later_rows: Columns, column: str) -> Floats:
    """Return each rank's excess over the usual sum: the later steps' median of the largest rank's sum.

    The largest rank is the reference because ranks may take turns waiting. The excess is zero if one more
    step like the later ones could reach the sum by chance.
    """
    rank = np.searchsorted(ranks, rows.ints("rank"))
    sums = np.zeros(len(ranks))
    np.add.at(sums, rank, rows.floats(column))
    steps = np.bincount(rank[Groups(rank, rows.ints("step")).first], minlength=len(ranks))
    if not len(later_rows):
        return sums
    each = later_rows.group_by("step", "rank")
    later = Groups(later_rows.ints("step")[each.first]).max(each.sum(later_rows.floats(column)))
    # The value that one more step exceeds in at most 1 % of cases. Waits have heavier tails than Student's t,
    # so it is at least the largest of these steps plus their range.
    likely = later.max() + np.ptp(later)
    if len(later) > 1:
        t = _T_99[min(len(later) - 1, len(_T_99)) - 1]
        likely = max(likely, later.mean() + t * later.std(ddof=1) * np.sqrt(1 + 1 / len(later)))
    excess = np.where(sums > steps * likely, sums - float(np.median(later)) * steps, 0.0)
    return np.maximum(0.0, excess)


def measure_wait_before_steps_ns(analysis: RunAnalysis) -> tuple[float, float]:
    """Measure a rank's longest wait for other ranks to start, and the recorded time before the first step."""
    by_rank = analysis.steps.group_by("rank")
    ranks = analysis.steps.ints("rank")[by_rank.first].tolist()
    walls_ns = dict(zip(ranks, by_rank.median(analysis.steps.ints("wall_ns")).tolist(), strict=True))
    recorded_ns = {
        tracks.rank: float(tracks.steps.begin_ns[0] - tracks.coverage[0, 0])
        if len(tracks.coverage) and len(tracks.steps)
        else 0.0
        for tracks in analysis.tracks
    }
    lost_ns = max(
        min(tracks.wait_before_ns, recorded_ns[tracks.rank] - walls_ns.get(tracks.rank, 0.0))
        for tracks in analysis.tracks
    )
    return lost_ns, max(recorded_ns.values())
