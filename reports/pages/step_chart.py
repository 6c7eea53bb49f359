"""Build the step chart: one step of all ranks on one clock, who waits, and for whom."""

from collections.abc import Sequence

from zprof.base.formatting import format_ns, shorten
from zprof.model.step_overview import OverviewLane, OverviewRow, SliceKind, StepOverview, WaitArrow
from zprof.model.time import Time
from zprof.reports.page import (
    AxisMark,
    LegendEntry,
    Section,
    StepArrow,
    StepChart,
    StepLane,
    StepRow,
    make_section,
)
from zprof.reports.pages.names import group_name

#: Columns of the static drawing, and its width.
BINS = 500
_VIEWBOX_WIDTH = 1_000
#: Heights and gaps in px.
_COMPUTE_HEIGHT, _LANE_HEIGHT, _LANE_GAP, _ROW_GAP, _LINE_HEIGHT = 16, 13, 2, 14, 15
_TOP = 4
#: A column is drawn if slices cover at least this share of it: short messages are still seen.
_MIN_COMPUTE_RATIO, _MIN_MESSAGE_RATIO = 0.3, 0.04
_MAX_WAITS = 6
_TICKS = 4
_MAX_LANE_NAME = 14
#: Style class, letter and name of each kind of slice.
KINDS = {
    SliceKind.COMPUTE: ("step-compute", "", "compute"),
    SliceKind.WAIT: ("step-wait", "", "exposed wait"),
    SliceKind.TRANSFER: ("step-transfer", "", "exposed transfer"),
    SliceKind.HIDDEN: ("step-hidden", "", "communication hidden under compute"),
    SliceKind.COPY: ("step-copy", "", "exposed copies"),
}


def build_step_section(time: Time, overview: StepOverview | None) -> tuple[Section, ...]:
    """Build the section on one step of all ranks; empty without one."""
    if overview is None:
        return ()
    name = "window" if time.is_whole else "step"
    lead = f"One {name} of all ranks on one clock: who computes, who waits, and for whom."
    return make_section("step", f"Timeline of a {name}", lead, _build_step_chart(time, overview))


def _build_step_chart(time: Time, overview: StepOverview) -> StepChart:
    rows, top = [], _TOP
    for entry in overview.rows:
        notes = _describe_row(entry, overview)
        lanes, bottom = _draw_lanes(entry, overview, top)
        rows.append(StepRow(name=_name_row(entry), notes=notes, top=top, lanes=lanes))
        top = max(bottom, top + _LINE_HEIGHT * (1 + len(notes))) + _ROW_GAP
    title = "The window" if time.is_whole else f"Step {overview.step}"
    return StepChart(
        title=f"{title} of {_count_ranks(overview)}, {format_ns(overview.length_ns)}",
        rows=tuple(rows),
        arrows=tuple(_draw_arrow(arrow, overview, rows) for arrow in overview.arrows),
        marks=tuple(
            AxisMark(at=100 * tick / _TICKS, text=format_ns(overview.length_ns * tick / _TICKS))
            for tick in range(_TICKS + 1)
        ),
        height=top,
        legend=tuple(
            LegendEntry(colour=colour, letter=letter, name=name) for colour, letter, name in KINDS.values()
        ),
        waits=tuple(_describe_wait(arrow) for arrow in overview.arrows[:_MAX_WAITS]),
        notes=_list_notes(time, overview),
        overview=overview,
    )


def _count_ranks(overview: StepOverview) -> str:
    count = sum(1 + len(row.alike) for row in overview.rows)
    return f"{count:,} ranks" if count > 1 else "1 rank"


def _name_row(row: OverviewRow) -> str:
    return f"rank {row.rank}" if row.stage is None else f"rank {row.rank}, stage {row.stage}"


def _describe_row(row: OverviewRow, overview: StepOverview) -> tuple[str, ...]:
    notes = []
    if row.rank == overview.culprit:
        notes.append("most waited for")
    elif row.rank == overview.victim:
        notes.append(f"waits for rank {overview.culprit}")
    if row.alike:
        notes.append(f"and {len(row.alike):,} more like it")
    return tuple(notes)


def _draw_lanes(row: OverviewRow, overview: StepOverview, top: int) -> tuple[tuple[StepLane, ...], int]:
    """Return the lanes from top to bottom, and where they end."""
    lanes = []
    for lane in row.lanes:
        height = _COMPUTE_HEIGHT if lane.is_compute else _LANE_HEIGHT
        name = _name_lane(lane)
        lanes.append(
            StepLane(
                name=shorten(
                    name if lane.role is None or lane.is_compute else lane.role.value, _MAX_LANE_NAME
                ),
                full_name=name,
                top=top,
                height=height,
                paths=tuple(_draw_slices(lane, overview.length_ns, top, height)),
            )
        )
        top += height + _LANE_GAP
    return tuple(lanes), top


def _name_lane(lane: OverviewLane) -> str:
    if lane.is_compute:
        return "compute"
    if not lane.group:
        return "no group"
    name = group_name(lane.group)
    return f"ranks {name}" if lane.role is None else f"{lane.role.value} group {name}"


def _draw_slices(lane: OverviewLane, length_ns: int, top: int, height: int) -> list[tuple[str, str]]:
    """Return an SVG path per kind: in each column, the kind that covers most of it."""
    shares = [dict[int, float]() for _ in range(BINS)]
    scale = BINS / max(1, length_ns)
    for kind, start_ns, slice_ns in zip(lane.kinds, lane.starts_ns, lane.lengths_ns, strict=True):
        start, end = max(0.0, start_ns * scale), min(float(BINS), (start_ns + slice_ns) * scale)
        for index in range(int(start), min(BINS, int(end) + 1)):
            share = min(end, index + 1) - max(start, index)
            if share > 0:
                shares[index][kind] = shares[index].get(kind, 0.0) + share
    least = _MIN_COMPUTE_RATIO if lane.is_compute else _MIN_MESSAGE_RATIO
    first = [max(bin_, key=bin_.__getitem__) if sum(bin_.values()) >= least else -1 for bin_ in shares]
    paths: dict[int, list[str]] = {}
    width, begin = _VIEWBOX_WIDTH // BINS, 0
    for index in range(1, BINS + 1):
        if index < BINS and first[index] == first[begin]:
            continue
        if first[begin] >= 0:
            span = width * (index - begin)
            paths.setdefault(first[begin], []).append(f"M{width * begin} {top}h{span}v{height}h-{span}z")
        begin = index
    return [(KINDS[SliceKind(kind)][0], "".join(parts)) for kind, parts in sorted(paths.items())]


def _draw_arrow(arrow: WaitArrow, overview: StepOverview, rows: Sequence[StepRow]) -> StepArrow:
    return StepArrow(
        start=_scale_to_percent((arrow.start_ns + arrow.arrival_ns) / 2, overview.length_ns),
        start_top=find_arrow_top(arrow, arrow.rank, overview, rows),
        end=_scale_to_percent(arrow.arrival_ns, overview.length_ns),
        end_top=find_arrow_top(arrow, arrow.last_rank, overview, rows),
        text=_describe_wait(arrow),
    )


def find_arrow_top(arrow: WaitArrow, rank: int, overview: StepOverview, rows: Sequence[StepRow]) -> int:
    """Return the middle of the lane of the arrow's group on a rank, in px."""
    index = next(index for index, row in enumerate(overview.rows) if row.rank == rank)
    lanes = rows[index].lanes
    groups = [lane.group for lane in overview.rows[index].lanes]
    lane = lanes[groups.index(arrow.group)] if arrow.group in groups else lanes[0]
    return lane.top + lane.height // 2


def _scale_to_percent(time_ns: float, length_ns: int) -> float:
    return round(100 * min(1.0, max(0.0, time_ns / max(1, length_ns))), 2)


def _describe_wait(arrow: WaitArrow) -> str:
    group = f" of {group_name(arrow.group)}" if arrow.group else ""
    more = f"{arrow.other_ranks:,} more rank{'s' if arrow.other_ranks > 1 else ''}"
    others = f"; so {'do' if arrow.other_ranks > 1 else 'does'} {more}" if arrow.other_ranks else ""
    return (
        f"rank {arrow.rank} waits {format_ns(arrow.exposed_wait_ns)} for rank {arrow.last_rank} "
        f"in {arrow.kind}{group}, from {format_ns(max(0, arrow.start_ns))}{others}"
    )


def _list_notes(time: Time, overview: StepOverview) -> tuple[str, ...]:
    notes = []
    if overview.culprit is not None:
        notes.append(
            f"First rank {overview.culprit}, which the others wait for most "
            f"({format_ns(overview.caused_wait_ns)} {time.basis} for each waiting rank), "
            f"then rank {overview.victim}, which waits most for it here."
        )
    notes += [
        f"Like rank {row.rank}: ranks {group_name(','.join(map(str, row.alike)))}."
        for row in overview.rows
        if row.alike
    ]
    if time.alignment is not None and time.alignment.uncertainty_ns:
        notes.append(f"Clocks of the ranks are aligned within {format_ns(time.alignment.uncertainty_ns)}.")
    if overview.is_coarse:
        notes.append(
            f"To bound the size of this page, slices less than {format_ns(overview.resolution_ns)} apart are "
            "drawn as one; all of them: zprof tui RUN."
        )
    return tuple(notes)
