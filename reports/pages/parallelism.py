"""Parallelism: the mesh of a job, the messages of each kind of parallelism, and the pipeline's bubble."""

from zprof.base.formatting import format_ns, format_percent
from zprof.model.cursor import Cursor
from zprof.model.mesh import Bubble, GroupRole, Mesh, RoleTime
from zprof.model.report import Report
from zprof.reports.page import KeyFigures, Section, make_section
from zprof.reports.pages.collectives import make_rows, metric_field, name_field
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
