"""Build the checks of model states against the ZeRO formula: a table, sentences, and a check in full."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.formatting import format_bytes, printable
from zprof.model.cursor import Cursor, get, read
from zprof.model.memory import NOT_EXPLAINED, FormulaCheck
from zprof.model.metrics import METRICS
from zprof.model.quantities import Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.reports.pages.tenants import make_tenant_cell, tenant_name
from zprof.reports.table import (
    MAX_ROWS,
    Column,
    Kind,
    Mark,
    Marked,
    Opens,
    Row,
    Table,
    make_table,
    make_text_column,
)

FORMULA_TITLE = "Model states against the ZeRO formula"
_MAX_TEXT_ROWS = 12
#: Terms of a formula check: measured = formula + padding + step counters + unexplained.
_FORMULA_TERMS = ("formula_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
#: Short titles for a screen.
_SHORT_TITLES = {"step counters": "counters"}
#: Parameters, gradients, optimizer state.
_STATE_COUNT = 3
#: Causes that stand for an unknown cause.
_UNKNOWN_CAUSES = frozenset({"", NOT_EXPLAINED})
_SHARDED = {
    Tenant.OPTIMIZER_STATE: "sharded over the ranks from stage 1",
    Tenant.GRADIENTS: "sharded over the ranks from stage 2",
    Tenant.PARAMETERS: "sharded over the ranks in stage 3",
}
_FORMULA = (
    "With Psi parameters over N ranks, and p, g and k bytes per element of parameters, gradients and",
    "optimizer state (2, 2 and 12 for fp16 with Adam and fp32 masters):",
    "  stage 0  (p + g + k) Psi",
    "  stage 1  (p + g) Psi + k Psi / N",
    "  stage 2  p Psi + (g + k) Psi / N",
    "  stage 3  (p + g + k) Psi / N",
)


class StateCheck(Struct, frozen=True, kw_only=True):
    """Measured bytes of one rank's model states against the ZeRO formula.

    ``unexplained_bytes``: signed sum of bytes not explained by formula, padding and step counters;
    ``abs_unexplained_bytes``: sum of their absolute values per state, so opposite signs do not cancel.
    """

    rank: int
    formula_bytes: int
    measured_bytes: int
    padding_bytes: int
    scalar_bytes: int
    unexplained_bytes: int
    abs_unexplained_bytes: int
    has_cause: bool


def build_formula_table(report: Report, rank: int | None = None) -> Table | None:
    """Build the table of model states for one rank or all, largest difference from the formula first."""
    checks = [
        (at, check)
        for at, check in enumerate(Cursor(report).memory.formulas)
        if rank in (None, get(check).rank)
    ]
    checks.sort(key=lambda item: -abs(get(item[1]).unexplained_bytes))
    rows = [_build_formula_row(at, check, of_all_ranks=rank is None) for at, check in checks]
    causes = dict.fromkeys(
        f"{tenant_name(get(check).tenant)}: {get(check).cause}" for _, check in checks if get(check).cause
    )
    metrics = [METRICS[f"memory.formulas[].{name}"] for name in _FORMULA_TERMS]
    return make_table(
        f"{FORMULA_TITLE}{'' if rank is None else f', rank {rank}'}",
        (
            make_text_column("state"),
            *([Column(title="rank")] if rank is None else []),
            *(
                Column(
                    title=metric.title,
                    short=_SHORT_TITLES.get(metric.title, ""),
                    unit="bytes",
                    help=metric.help,
                )
                for metric in metrics
            ),
            Column(title="cause", kind=Kind.TEXT, takes_rest=True, screen_only=True),
        ),
        rows,
        name="formulas",
        help="measured = formula + padding + step counters + unexplained. Each state is measured when it is "
        "complete (gradients when the optimizer starts), not at the peak that the bars show, at which some "
        "states may not be live. Press enter on a state for the formula and the cause.",
        note="each state when it is complete, not at the peak",
        notes=list(causes)[:MAX_ROWS],
        max_text_rows=_MAX_TEXT_ROWS,
        noun="rows, largest differences first",
    )


def _build_formula_row(index: int, place: Cursor, *, of_all_ranks: bool) -> Row:
    check: FormulaCheck = get(place)
    mark = Mark.DOUBTFUL if check.unexplained_bytes else Mark.GOOD
    return Row(
        key=str(index),
        cells=(
            make_tenant_cell(check.tenant),
            *([str(check.rank)] if of_all_ranks else []),
            *(read(place[name], signed=name == "unexplained_bytes") for name in _FORMULA_TERMS),
            Marked(check.cause or "exact", mark),
        ),
        opens=Opens.FORMULA,
        target=index,
    )


def describe_formula_check(report: Report, index: int, facts: TrainingFacts) -> tuple[str, str]:
    """Return the title and text of one model state checked against the ZeRO formula.

    The text has the terms, the cause of a difference, the formula, and the known inputs.
    """
    place = Cursor(report).memory.formulas[index]
    check: FormulaCheck = get(place)
    signs = {"formula_bytes": "ZeRO", "measured_bytes": "="}
    terms = (*(name for name in _FORMULA_TERMS if name != "measured_bytes"), "measured_bytes")
    lines = [
        *(
            f"{read(place[name]).text:>12}  {signs.get(name, '+')} "
            f"{METRICS[f'memory.formulas[].{name}'].title}"
            for name in terms
        ),
        "",
        f"cause: {printable(check.cause)}" if check.cause else "the measured bytes match the formula exactly",
        "",
        *_FORMULA,
        f"{tenant_name(check.tenant)}: {_SHARDED[check.tenant]}",
        "",
        *_format_facts(facts),
    ]
    return f"{tenant_name(check.tenant)} of rank {check.rank} compared with the formula", "\n".join(lines)


def _format_facts(facts: TrainingFacts) -> list[str]:
    known = (
        ("engine", facts.engine),
        ("stage", facts.stage),
        ("Psi, parameters", facts.parameters),
        ("N, ranks in the shard group", facts.shard_ranks),
        ("p, bytes per parameter", facts.parameter_bytes),
        ("g, bytes per gradient element", facts.gradient_bytes),
        ("k, bytes of optimizer state", facts.optimizer_state_bytes),
        ("padding elements of the model", facts.padding_elements),
        ("step counters per rank", facts.step_counters),
    )
    return [
        "inputs from this run",
        *(f"  {name:<32} {'unknown' if value is None else printable(value)}" for name, value in known),
        *(f"  {printable(setting.name):<32} {printable(setting.value)}" for setting in facts.settings),
    ]


def describe_states(checks: Sequence[FormulaCheck], max_ranks: int) -> tuple[str, ...]:
    """Describe the model states of each rank, largest deviation first, in one sentence if all ranks agree."""
    # Sum the three states of each rank, omitting ranks without a formula for every state.
    by_rank: dict[int, list[FormulaCheck]] = {}
    for state in checks:
        by_rank.setdefault(state.rank, []).append(state)
    rank_checks = [
        StateCheck(
            rank=rank,
            formula_bytes=sum(state.formula_bytes for state in rank_checks),
            measured_bytes=sum(state.measured_bytes for state in rank_checks),
            padding_bytes=sum(state.padding_bytes for state in rank_checks),
            scalar_bytes=sum(state.scalar_bytes for state in rank_checks),
            unexplained_bytes=sum(state.unexplained_bytes for state in rank_checks),
            abs_unexplained_bytes=sum(abs(state.unexplained_bytes) for state in rank_checks),
            has_cause=all(
                state.cause not in _UNKNOWN_CAUSES for state in rank_checks if state.unexplained_bytes
            ),
        )
        for rank, rank_checks in by_rank.items()
        if len(rank_checks) == _STATE_COUNT
    ]
    if len({replace(check, rank=0) for check in rank_checks}) == 1:
        return (_describe_state("each rank", rank_checks[0]),)
    largest = sorted(rank_checks, key=lambda check: (-check.abs_unexplained_bytes, check.rank))[:max_ranks]
    omission = f"{len(largest)} of {len(rank_checks)} ranks, largest deviations first."
    lines = [_describe_state(f"rank {check.rank}", check) for check in largest]
    return (*lines, *((omission,) if len(largest) < len(rank_checks) else ()))


def _describe_state(subject: str, check: StateCheck) -> str:
    sizes = (
        f"formula {format_bytes(check.formula_bytes)}",
        f"measured {format_bytes(check.measured_bytes)}",
        f"padding {format_bytes(check.padding_bytes)}",
        f"step counters {format_bytes(check.scalar_bytes)}",
    )
    return f"Model states of {subject}: {', '.join(sizes)}; {_describe_difference(check)}."


def _describe_difference(check: StateCheck) -> str:
    """Describe the unexplained difference."""
    if not check.abs_unexplained_bytes:
        return "exact to the byte"
    difference = format_bytes(check.abs_unexplained_bytes)
    if check.has_cause:
        return f"{difference} difference with known cause"
    if abs(check.unexplained_bytes) == check.abs_unexplained_bytes:
        return f"{Value(check.unexplained_bytes, Unit.BYTES, signed=True).text} unexplained"
    return f"{difference} unexplained: some states are larger than expected, others smaller"
