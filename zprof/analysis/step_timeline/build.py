"""Build the timeline of one rank's step from its events and the analysis."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, Mask, OptionalInts
from zprof.analysis.intervals import Int64s, Intervals, clip, intersect, intervals, subtract, union
from zprof.analysis.step_timeline.lane import (
    Cover,
    EventKind,
    LaneKind,
    LaneRole,
    TimelineLane,
    build_cover,
    build_items,
)
from zprof.analysis.step_timeline.step_model import StepTimeline
from zprof.analysis.time.activity import has_device_work
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.events import (
    CALL_CATEGORIES,
    NO_STREAM,
    WORK_CATEGORIES,
    EventView,
    assign_device_roles,
    assign_host_roles,
    find_busiest,
)
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import (
    UNKNOWN_PHASE,
    collect_phase_evidence,
    find_program_thread,
    locate_instants,
)
from zprof.base.errors import MissingData
from zprof.run.ranges import RangeVerb, parse_range
from zprof.run.reader import Run
from zprof.run.table_reader import make_array, read_numbers

#: Maximum number of stream and thread lanes; the least busy are dropped.
MAX_LANES = 24
#: Maximum number of ranks or steps listed in an error.
_MAX_LISTED = 12
_COLUMNS = (
    "start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation", "bytes",
)  # fmt: skip
_ROLE_LABELS = {LaneRole.COMPUTE: "compute", LaneRole.MEMCPY: "copies", LaneRole.UNEXPLAINED: "comm?"}
#: Excludes Python functions and the profiler's own overhead.
_HOST = frozenset({"cpu_op", "user_annotation"}) | CALL_CATEGORIES
_DEVICE = WORK_CATEGORIES | {"gpu_user_annotation"}


class RowTimes(Struct, frozen=True, kw_only=True, eq=False):
    """Start and end of each row, relative to the step's start, and a mask of rows that overlap the step."""

    start_ns: Int64s
    end_ns: Int64s
    inside: Mask


class ExposedTime(Struct, frozen=True, kw_only=True, eq=False):
    """Exposed communication in the step, before and after the last rank arrived."""

    waiting: Intervals
    moving: Intervals

    @property
    def all(self) -> Intervals:
        """Union of the two."""
        return union(self.waiting, self.moving)


class ClassifiedEvents(Struct, frozen=True, kw_only=True, eq=False):
    """The view's rows with their kind and lane. ``main``: the program's main thread."""

    view: EventView
    kind: npt.NDArray[np.int8]
    on_stream: Mask
    main: int
    on_device: bool


def build_step_model(run: Run, analysis: RunAnalysis, rank: int, step: int) -> StepTimeline:
    """Build the timeline of one rank's step.

    Raises:
        MissingData: no timing for the rank or the step.
        BadInput: the events table is damaged.
    """
    tracks = find_tracks(analysis, rank)
    begin, end = find_step_span(tracks, step)
    table = run.table(rank, "events", _COLUMNS)
    collective_rows = run.table(rank, "collectives", ("start_ns", "end_ns", "stream"))
    classified = classify_events(table, collective_rows)
    row_times = _time_rows(classified, tracks, begin, end)
    selected_rows = _select_rows(classified, row_times)
    exposed = ExposedTime(
        waiting=clip(tracks.waiting, begin, end) - begin, moving=clip(tracks.moving, begin, end) - begin
    )
    collectives = _select_collectives(analysis, rank, begin, end)
    lanes, omitted_lanes = _make_work_lanes(classified, row_times, selected_rows, exposed, end - begin)
    collective_spans = _find_collective_spans(collective_rows, classified, tracks, begin, end)
    summary_lanes = [
        make_phase_lane(
            table,
            Columns.from_arrow(run.table(rank, "mark")),
            tracks.clock,
            begin,
            end,
            on_device=classified.on_device,
        ),
        make_unit_lane(classified, row_times.start_ns, row_times.end_ns, row_times.inside, end - begin),
        make_collective_lane(collectives, collective_spans, exposed),
    ]
    row_mask = np.zeros(table.num_rows, dtype=np.bool_)
    row_mask[classified.view.rows[selected_rows]] = True
    events = table.filter(make_array(row_mask, pa.bool_()))
    return StepTimeline(
        rank=rank,
        step=step,
        length_ns=end - begin,
        on_device=classified.on_device,
        lanes=(*(lane for lane in summary_lanes if lane is not None), *lanes),
        omitted_lanes=omitted_lanes,
        gaps=union(exposed.waiting, exposed.moving),
        collectives=collectives,
        events=events,
        starts_ns=tracks.clock.common(read_numbers(events.column("start_ns"))) - begin,
    )


def find_tracks(analysis: RunAnalysis, rank: int) -> RankTracks:
    """Return a rank's analysed tracks.

    Raises:
        MissingData: no timing for the rank.
    """
    for tracks in analysis.tracks:
        if tracks.rank == rank:
            return tracks
    timed = [tracks.rank for tracks in analysis.tracks]
    raise MissingData(f"no timing was recorded for rank {rank}", hint=_list_known("timed ranks", timed))


def find_step_span(tracks: RankTracks, step: int) -> tuple[int, int]:
    """Return the start and end of a rank's step on the common clock.

    Raises:
        MissingData: the rank has no timing for the step.
    """
    for number, begin, end in zip(
        *(column.tolist() for column in (tracks.steps.number, tracks.steps.begin_ns, tracks.steps.end_ns)),
        strict=True,
    ):
        if number == step:
            return begin, end
    raise MissingData(
        f"rank {tracks.rank} has no timing for step {step}",
        hint=_list_known("timed steps", tracks.steps.number.tolist()),
    )


def _list_known(noun: str, numbers: Sequence[int]) -> str:
    """Return the valid numbers, or where to look if there are none."""
    shown = ", ".join(map(str, numbers[:_MAX_LISTED]))
    if not shown:
        return "the gaps of the report say why"
    return f"{noun}: {shown}{', …' if len(numbers) > _MAX_LISTED else ''}"


def _time_rows(classified: ClassifiedEvents, tracks: RankTracks, begin: int, end: int) -> RowTimes:
    common = tracks.clock.common(classified.view.spans)
    ends_inside = (common[:, 1] > begin) | (common[:, 0] >= begin)
    return RowTimes(
        start_ns=common[:, 0] - begin, end_ns=common[:, 1] - begin, inside=(common[:, 0] < end) & ends_inside
    )


def _select_rows(classified: ClassifiedEvents, row_times: RowTimes) -> Mask:
    """Return a mask of the rows in the step and of the calls that launched its device work."""
    view = classified.view
    work = view.correlation[row_times.inside & view.match_categories(*WORK_CATEGORIES)]
    calls = view.match_categories(*CALL_CATEGORIES) & np.isin(view.correlation, work[work > 0])
    return row_times.inside | calls


def _select_collectives(analysis: RunAnalysis, rank: int, begin: int, end: int) -> Columns:
    """Return this rank's collectives, sorted by start, with times relative to the step.

    ``last_lateness_ns`` is the lateness of the last rank to arrive; ``lateness_ns`` is this rank's own.
    """
    rows = analysis.collectives
    instances = Groups(rows.ints("instance"))
    latest = instances.max(rows.ints("lateness_ns"))[instances.codes]
    overlaps = (rows.ints("rank") == rank) & (rows.ints("start_ns") < end) & (rows.ints("end_ns") > begin)
    rows = rows.with_columns(last_lateness_ns=latest).at(overlaps).sort_by("start_ns").renumber()
    launches = ("launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns")
    return rows.with_columns(
        **{name: rows.ints(name) - begin for name in ("start_ns", "end_ns")},
        **{name: OptionalInts(rows.ints(name) - begin, rows.known(name)) for name in launches},
    )


def _find_collective_spans(
    table: pa.Table, classified: ClassifiedEvents, tracks: RankTracks, begin: int, end: int
) -> Intervals:
    """Return the intervals of collectives that can block this rank, including collectives outside all
    steps.
    """
    rows = Columns.from_arrow(table)
    start, stop = rows.ints("start_ns"), rows.ints("end_ns")
    is_blocking = (stop >= start) & (rows.known("stream") | (not classified.on_device))
    return clip(tracks.clock.common(intervals(start, stop)[is_blocking]), begin, end) - begin


def _make_work_lanes(
    classified: ClassifiedEvents,
    row_times: RowTimes,
    selected_rows: Mask,
    exposed: ExposedTime,
    length_ns: int,
) -> tuple[list[TimelineLane], int]:
    """Return stream lanes by number, then thread lanes (main first), and the number of dropped lanes."""
    row_index = np.cumsum(selected_rows) - 1
    lanes = []
    for kind, rows in ((LaneKind.STREAM, classified.on_stream), (LaneKind.THREAD, ~classified.on_stream)):
        numbers = classified.view.stream if kind is LaneKind.STREAM else classified.view.thread
        for number in sorted(
            np.unique(numbers[row_times.inside & rows]).tolist(),
            key=lambda number: (kind is LaneKind.THREAD and number != classified.main, number),
        ):
            rows_of_lane = np.flatnonzero(row_times.inside & rows & (numbers == number))
            lane = make_work_lane(
                kind=kind,
                number=number,
                spans=intervals(row_times.start_ns[rows_of_lane], row_times.end_ns[rows_of_lane]),
                row=row_index[rows_of_lane],
                kinds=classified.kind[rows_of_lane],
                exposed=exposed,
                is_main=number == classified.main,
                on_device=classified.on_device,
                length_ns=length_ns,
            )
            if lane is not None:
                lanes.append(lane)
    busiest = sorted(lanes, key=lambda lane: -lane.busy_ns)[:MAX_LANES]
    return [lane for lane in lanes if lane in busiest], len(lanes) - len(busiest)


def make_work_lane(
    *,
    kind: LaneKind,
    number: int,
    spans: Intervals,
    row: Int64s,
    kinds: npt.NDArray[np.int8],
    exposed: ExposedTime,
    is_main: bool,
    on_device: bool,
    length_ns: int,
) -> TimelineLane | None:
    """Return a stream's or thread's lane, or None if it has only annotations."""
    shows_ledger = is_main and not on_device

    def select_spans(*selected: EventKind) -> Intervals:
        return clip(spans[np.isin(kinds, [int(kind) for kind in selected])], 0, length_ns)

    if kind is LaneKind.STREAM:
        parts = _split_stream(
            select_spans(EventKind.COMPUTE),
            select_spans(EventKind.COPY),
            select_spans(EventKind.COLLECTIVE),
            select_spans(EventKind.NAMELESS),
            exposed,
        )
    elif shows_ledger:
        terms = (select_spans(EventKind.COMPUTE), select_spans(EventKind.COPY), select_spans(EventKind.WAIT))
        parts = _split_main_thread(
            *terms, select_spans(EventKind.HOST, EventKind.COMPUTE, EventKind.COPY, EventKind.WAIT), exposed
        )
    else:
        parts = _split_thread(
            select_spans(EventKind.COLLECTIVE),
            select_spans(EventKind.HOST, EventKind.COMPUTE, EventKind.COPY),
            exposed,
        )
    covers = {role: build_cover(part) for role, part in parts.items() if len(part)}
    if not covers:
        return None
    shows_idle = shows_ledger or (kind is LaneKind.STREAM and LaneRole.COMPUTE in covers)
    return TimelineLane(
        key=f"{kind.value} {number}",
        label=_format_label(kind, number, covers, is_main=is_main, on_device=on_device),
        title=f"{kind.value} {number}{' (main)' if is_main and kind is LaneKind.THREAD else ''}",
        kind=kind,
        covers=covers,
        items=build_items(spans[:, 0], spans[:, 1], row, kinds),
        shows_idle=shows_idle,
    )


def make_collective_lane(
    collectives: Columns, collective_spans: Intervals, exposed: ExposedTime
) -> TimelineLane | None:
    """Return the lane of all collectives (wait, transfer, hidden), or None if there are none."""
    parts = {
        LaneRole.TRANSFER: exposed.moving,
        LaneRole.WAIT: exposed.waiting,
        LaneRole.HIDDEN: subtract(collective_spans, exposed.all),
    }
    covers = {role: build_cover(part) for role, part in parts.items() if len(part)}
    if not covers:
        return None
    start, end = (collectives.ints(name) for name in ("start_ns", "end_ns"))
    kinds = np.full(len(start), EventKind.COLLECTIVE, dtype=np.int8)
    return TimelineLane(
        key="collectives",
        label="collectives",
        title="all collectives of this rank",
        kind=LaneKind.COLLECTIVES,
        covers=covers,
        items=build_items(start, end, np.arange(len(start)), kinds),
    )


def _split_stream(
    compute: Intervals, copies: Intervals, collective: Intervals, nameless: Intervals, exposed: ExposedTime
) -> dict[LaneRole, Intervals]:
    return {
        LaneRole.COMPUTE: compute,
        LaneRole.TRANSFER: intersect(collective, exposed.moving),
        LaneRole.WAIT: intersect(collective, exposed.waiting),
        LaneRole.HIDDEN: subtract(collective, exposed.all),
        LaneRole.MEMCPY: copies,
        LaneRole.UNEXPLAINED: subtract(nameless, exposed.all),
    }


def _split_main_thread(
    compute: Intervals, copies: Intervals, waits: Intervals, busy: Intervals, exposed: ExposedTime
) -> dict[LaneRole, Intervals]:
    """Split a CPU rank's main thread into its ledger terms and other host work."""
    own_compute = subtract(compute, union(waits, copies))
    known = union(own_compute, exposed.all)
    own_copies = subtract(copies, union(waits, known))
    return {
        LaneRole.COMPUTE: own_compute,
        LaneRole.TRANSFER: exposed.moving,
        LaneRole.WAIT: exposed.waiting,
        LaneRole.MEMCPY: own_copies,
        LaneRole.HOST: subtract(busy, union(known, own_copies)),
    }


def _split_thread(collective: Intervals, busy: Intervals, exposed: ExposedTime) -> dict[LaneRole, Intervals]:
    return {
        LaneRole.TRANSFER: intersect(collective, exposed.moving),
        LaneRole.WAIT: intersect(collective, exposed.waiting),
        LaneRole.HIDDEN: subtract(collective, exposed.all),
        LaneRole.HOST: subtract(busy, collective),
    }


def _format_label(
    kind: LaneKind, number: int, covers: Mapping[LaneRole, Cover], *, is_main: bool, on_device: bool
) -> str:
    """Return a label by the dominant role: ``s7 compute``, ``main thread``, ``t16144 comm``."""
    if kind is LaneKind.THREAD and is_main:
        return "cpu main" if on_device else "main thread"
    dominant = max(covers, key=lambda role: covers[role].length_ns)
    if kind is LaneKind.STREAM:
        return f"s{number} {_ROLE_LABELS.get(dominant, 'comm')}"
    return f"t{number}" if dominant is LaneRole.HOST else f"t{number} comm"


def classify_events(events: pa.Table, collectives: pa.Table) -> ClassifiedEvents:
    """Classify a rank's events; ``collectives`` is its table of collectives."""
    view = EventView(events, _HOST | _DEVICE)
    kind = np.full(len(view.spans), EventKind.RANGE, dtype=np.int8)
    operators = view.match_categories("cpu_op")
    kind[operators | view.match_categories(*CALL_CATEGORIES)] = EventKind.HOST
    on_device = has_device_work(events)
    if on_device:
        roles = assign_device_roles(view, collectives)
        kind[roles.compute] = EventKind.COMPUTE
        kind[roles.copies] = EventKind.COPY
        kind[roles.nameless] = EventKind.NAMELESS
        kind[roles.described] = EventKind.COLLECTIVE
    else:
        _classify_host(view, kind)
    return ClassifiedEvents(
        view=view,
        kind=kind,
        on_stream=(view.stream != NO_STREAM) & view.match_categories(*_DEVICE),
        main=find_program_thread(view) if on_device else find_busiest(view.thread[operators]),
        on_device=on_device,
    )


def _classify_host(view: EventView, kind: npt.NDArray[np.int8]) -> None:
    roles = assign_host_roles(view)
    off_main = view.match_categories("user_annotation") & ~roles.main
    kind[roles.compute] = EventKind.COMPUTE
    kind[roles.copies] = EventKind.COPY
    kind[roles.named | roles.anonymous] = EventKind.WAIT
    kind[view.match_names(off_main, _is_communication)] = EventKind.COLLECTIVE


def _is_communication(name: str) -> bool:
    """Return True if this is a range in which a communication library's thread runs a collective."""
    parsed = parse_range(name)
    return name.startswith(("gloo:", "nccl:", "mpi:", "ucc:")) or (
        parsed is not None and parsed.verb is RangeVerb.COMM
    )


def make_phase_lane(
    events: pa.Table, marks: Columns, clock: RankClock, begin_ns: int, end_ns: int, *, on_device: bool
) -> TimelineLane | None:
    """Return the lane of host phases (forward, backward, optimizer), or None if they are unknown."""
    evidence = collect_phase_evidence(events, marks, clock)
    # All times in the step at which the phase may change.
    span_sets = (
        evidence.forward,
        evidence.backward,
        evidence.ahead_forward,
        evidence.ahead_backward,
        evidence.autograd,
        evidence.optimizer,
        evidence.operators,
    )
    times = np.concatenate([spans.ravel() for spans in span_sets])
    inside = times[(times > begin_ns) & (times < end_ns)]
    edges = np.unique(np.concatenate((np.array([begin_ns], dtype=np.int64), inside)))
    steps = np.tile(np.array([[begin_ns, end_ns]], dtype=np.int64), (len(edges), 1))
    phases = np.array(locate_instants(evidence, edges, steps)[0])
    if (phases == UNKNOWN_PHASE).all():
        return None
    changes = np.flatnonzero(np.concatenate(([True], phases[1:] != phases[:-1])))
    starts = edges[changes]
    spans = intervals(starts, np.append(starts[1:], end_ns)) - begin_ns
    label = "cpu phase" if on_device else "phase"
    return _make_named_lane(
        LaneKind.PHASES, label, "phases of the host", spans, [str(p) for p in phases[changes]]
    )


def make_unit_lane(
    classified: ClassifiedEvents, start_ns: Int64s, end_ns: Int64s, inside: Mask, length_ns: int
) -> TimelineLane | None:
    """Return the unit lane from an engine's compute ranges, or None if there are none."""
    view = classified.view
    rows = inside & view.match_categories("user_annotation") & (view.thread == classified.main)
    rows = np.flatnonzero(view.match_names(rows, lambda name: _parse_unit(name) is not None))
    if not len(rows):
        return None
    names, code = view.coded(rows)
    units = [_parse_unit(name) or "" for name in names]
    spans = np.clip(intervals(start_ns[rows], end_ns[rows]), 0, length_ns)
    unit_names = [units[index] for index in code.tolist()]
    return _make_named_lane(LaneKind.UNITS, "unit", "units of the model", spans, unit_names)


def _make_named_lane(kind: LaneKind, label: str, title: str, spans: Int64s, names: list[str]) -> TimelineLane:
    kinds = np.full(len(spans), EventKind.RANGE, dtype=np.int8)
    items = build_items(spans[:, 0], spans[:, 1], np.arange(len(spans)), kinds)
    return TimelineLane(
        key=label, label=label, title=title, kind=kind, covers={}, items=items, names=tuple(names)
    )


def _parse_unit(name: str) -> str | None:
    parsed = parse_range(name)
    return parsed.unit if parsed is not None and parsed.verb is RangeVerb.COMPUTE else None
