"""Parallelism: the mesh of a job, the messages of each kind of parallelism, and the pipeline's bubble."""

from collections.abc import Mapping, Sequence

from zprof.base.formatting import format_ns, format_percent
from zprof.model.cursor import Cursor
from zprof.model.mesh import Bubble, GroupRole, Mesh, RoleTime
from zprof.model.report import Report
from zprof.reports.page import HeatCell, HeatMap, KeyFigures, Section, make_section
from zprof.reports.pages.collectives import make_rows, metric_field, name_field
from zprof.reports.pages.ranks import MAX_HEAT_COLUMNS, MAX_HEAT_ROWS, HeatScale, split_evenly
from zprof.reports.table import Table

_ROLES = "time.mesh.roles[]."
_MAX_GROUPS = 3
_TITLES = {
    GroupRole.SHARD: "shard (data)",
    GroupRole.REPLICA: "replica (data)",
    GroupRole.TENSOR: "tensor",
    GroupRole.CONTEXT: "context",
    GroupRole.EXPERT: "expert",
    GroupRole.PIPELINE: "pipeline",
    GroupRole.OTHER: "other",
}
#: Dimensions of the drawn mesh from outside, with the names that their sizes have on the command line.
_DIMENSIONS = {
    GroupRole.PIPELINE: "pp",
    GroupRole.REPLICA: "dp_replicate",
    GroupRole.SHARD: "dp",
    GroupRole.EXPERT: "ep",
    GroupRole.CONTEXT: "cp",
    GroupRole.TENSOR: "tp",
}
_DATA = (GroupRole.REPLICA, GroupRole.SHARD)
#: A mesh of more ranks is drawn with one cell for all ranks that differ only in the other dimensions.
_MAX_RANKS = 64
#: The brightest colour is at least this share of the step, so that noise stays dark.
_MIN_BRIGHT_RATIO = 0.05


def build_parallelism_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty for a job with a single kind of group."""
    mesh = report.time.mesh
    if mesh is None:
        return ()
    return make_section(
        "parallelism",
        "Parallelism",
        f"The kinds of parallelism of the job, and their messages {report.time.words.per_step}.",
        _build_role_table(report, mesh),
        _build_bubble(mesh.bubble, report.time.words.of_step) if mesh.bubble is not None else None,
        build_mesh_map(report),
        note="roles may overlap: their exposed times do not add up to those of the step",
    )


def _build_role_table(report: Report, mesh: Mesh) -> Table:
    fields = (
        name_field("role", show=lambda role: _TITLES[GroupRole(role)]),
        metric_field(f"{_ROLES}size"),
        metric_field(f"{_ROLES}groups"),
        metric_field(f"{_ROLES}messages", from_width=72),
        metric_field(f"{_ROLES}bytes", from_width=80),
        metric_field(f"{_ROLES}exposed_wait_ns"),
        metric_field(f"{_ROLES}exposed_transfer_ns"),
    )
    roles = Cursor(report).time.mesh.roles
    places = [roles[index] for index in range(len(mesh.roles))]
    return Table(
        name="mesh",
        title="Kinds of parallelism",
        columns=tuple(field.column for field in fields),
        rows=make_rows(fields, places),
        unit="ms",
        note=f"{report.time.basis}, mean of the ranks of the role's groups",
        notes=tuple(_describe_groups(mesh, role) for role in mesh.roles),
        total=len(places),
        noun="kinds of parallelism",
        help="Roles of process groups: ranks that share states, copies of them, and parts of the model.",
    )


def _describe_groups(mesh: Mesh, role: RoleTime) -> str:
    """Return the ranks of a role's groups, and how the role is known."""
    groups = mesh.list_groups(role.role)
    named = "; ".join(", ".join(map(str, group.ranks)) for group in groups[:_MAX_GROUPS])
    more = f" and {len(groups) - _MAX_GROUPS} more" if len(groups) > _MAX_GROUPS else ""
    basis = " and ".join(sorted({group.basis.value for group in groups}))
    return f"{_TITLES[role.role]}: ranks {named}{more} (by {basis})"


def _build_bubble(bubble: Bubble, of_step: str) -> KeyFigures:
    chunks = f" x {bubble.virtual} chunks" if bubble.virtual > 1 else ""
    shape = f"{bubble.stages} stages, {bubble.micro_batches} micro-batches{chunks}"
    return KeyFigures(
        figures=(
            (
                "bubble",
                format_percent(bubble.share_ratio),
                f"{of_step}; {format_percent(bubble.ideal_ratio)} with equal stages ({shape})",
            ),
            ("warm-up", format_ns(bubble.warm_up_ns), "wait for the first micro-batch"),
            ("steady", format_ns(bubble.steady_ns), "waits for other stages in between"),
            ("drain", format_ns(bubble.drain_ns), "wait for the last stage"),
        )
    )


def build_mesh_map(report: Report) -> HeatMap | None:
    """Build the map of the mesh, pipeline stages x other dimensions, with the wait that each rank caused.

    Without judged waits, it shows each rank's own exposed wait and idle time. A cell of several ranks shows
    the rank with the most. None if fewer than two ranks are known by their place.
    """
    mesh, time = report.time.mesh, report.time
    values, what = _read_waits(report)
    places = _locate_ranks(mesh, values) if mesh is not None else {}
    if len(places) < 2:
        return None
    outer, *inner = next(iter(places.values()))
    drawn = [role for role in inner if role in _DATA] if len(places) > _MAX_RANKS else inner
    keys = {rank: ((place[outer],), tuple(place[role] for role in drawn)) for rank, place in places.items()}
    rows = _group(sorted({row for row, _ in keys.values()}), MAX_HEAT_ROWS)
    columns = _group(sorted({column for _, column in keys.values()}), MAX_HEAT_COLUMNS)
    row_of, column_of = (
        {key: at for at, group in enumerate(each) for key in group} for each in (rows, columns)
    )
    worst_of: dict[tuple[int, int], int] = {}
    for rank in sorted(places, key=lambda rank: (values[rank], -rank)):  # the worst is the last to be written
        row, column = keys[rank]
        worst_of[row_of[row], column_of[column]] = rank
    walls_ns = [entry.wall_ns for entry in time.per_rank]
    bright_ns = round(_MIN_BRIGHT_RATIO * sum(walls_ns) / max(1, len(walls_ns)))
    scale = HeatScale(0, max(bright_ns, *(values[rank] for rank in places)))
    worst = max(worst_of.values(), key=lambda rank: (values[rank], -rank))
    position = ", ".join(f"{_DIMENSIONS[role]} {at}" for role, at in places[worst].items())
    shared = "; of several ranks, the one with the most" if len(worst_of) < len(places) else ""

    def cell(row: int, column: int) -> HeatCell:
        rank = worst_of.get((row, column))
        return scale.cell(None) if rank is None else scale.cell(values[rank], str(rank))

    return HeatMap(
        title=f"Mesh: {what}",
        unit=f"{scale.unit} {time.words.per_step}",
        corner=" \\ ".join(filter(None, (_DIMENSIONS[outer], ",".join(_DIMENSIONS[role] for role in drawn)))),
        columns=tuple(map(_name_keys, columns)),
        rows=tuple(
            (_name_keys(group), tuple(cell(row, column) for column in range(len(columns))))
            for row, group in enumerate(rows)
        ),
        scale=scale.legend(),
        notes=(
            f"Each cell: the rank, and its {what}{shared}.",
            f"Largest: rank {worst} ({position}), {scale.cell(values[worst]).text} {scale.unit}.",
        ),
        in_text=True,
    )


def _read_waits(report: Report) -> tuple[Mapping[int, int], str]:
    """Return a time of each rank and what it is."""
    blame = report.time.blame
    ranks = {entry.rank: entry.exposed_wait_ns + entry.idle_ns for entry in report.time.per_rank}
    if blame is None or not blame.judged:
        return ranks, "exposed wait and idle time"
    caused = {entry.rank: entry.exposed_wait_per_rank_ns for entry in blame.per_rank}
    return {rank: caused.get(rank, 0) for rank in ranks}, "wait caused, per waiting rank"


def _locate_ranks(mesh: Mesh, ranks: Mapping[int, int]) -> dict[int, dict[GroupRole, int]]:
    """Return the coordinates of the ranks in the dimensions that tell them apart, outermost first.

    A dimension that others imply is left out: shards that extend over a context group, say. Ranks without a
    place in each dimension are missing.
    """
    places: dict[GroupRole, dict[int, int]] = {}
    for role in _DIMENSIONS:
        for group in sorted(mesh.list_groups(role), key=lambda each: -len(each.ranks)):
            for at, rank in enumerate(group.ranks):
                places.setdefault(role, {}).setdefault(rank, at)
    located = [rank for rank in ranks if all(rank in found for found in places.values())]
    kept: list[GroupRole] = []
    for role in places:
        if role is GroupRole.EXPERT and GroupRole.SHARD in kept:
            continue
        before, after = (
            len({tuple(places[each][rank] for each in roles) for rank in located})
            for roles in (kept, [*kept, role])
        )
        if after > before:
            kept.append(role)
    return {rank: {role: places[role][rank] for role in kept} for rank in located} if kept else {}


def _group(keys: Sequence[tuple[int, ...]], most: int) -> list[Sequence[tuple[int, ...]]]:
    return [keys[group[0] : group[-1] + 1] for group in split_evenly(range(len(keys)), most)]


def _name_keys(keys: Sequence[tuple[int, ...]]) -> str:
    first, last = (",".join(map(str, key)) for key in (keys[0], keys[-1]))
    return first if first == last else f"{first}-{last}"
