"""What rows of the memory tables open: an allocation with its whole stack, a law with its cause."""

from zprof.model.memory import Basis
from zprof.model.printable import printable
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.reports.presenters.memory_figures import tenant_name
from zprof.tui.figures import Unit, figure
from zprof.tui.pages.memory_legend import label
from zprof.tui.pages.memory_tables import module_name
from zprof.tui.session import Loaded

_BASIS = {
    Basis.TAGGED: "seen by a hook or tag",
    Basis.RULE: "told by a rule on its stack and lifetime",
    Basis.UNKNOWN: "no rule claims it",
}
_SHARDED = {
    Tenant.OPTIMIZER_STATE: "each rank has its part from stage 1 on",
    Tenant.GRADIENTS: "each rank has its part from stage 2 on",
    Tenant.PARAMETERS: "each rank has its part in stage 3",
}
_LAW = (
    "With Psi parameters over N ranks, and p, g and k bytes an element of parameters, gradients and",
    "optimizer state (2, 2 and 12 for fp16 with Adam and fp32 masters):",
    "  stage 0  (p + g + k) Psi",
    "  stage 1  (p + g) Psi + k Psi / N",
    "  stage 2  p Psi + (g + k) Psi / N",
    "  stage 3  (p + g + k) Psi / N",
)


def allocation_text(loaded: Loaded, place: int) -> tuple[str, str]:
    """Title and text on one of the largest allocations: all that is known of it, every frame on its line."""
    entry = loaded.report.memory.top[place]
    size = figure(loaded.tree, Unit.BYTES, f"memory.top[{place}].bytes").text
    kind = ": ".join(part for part in (label(entry.tenant), entry.sub) if part)
    lines = [
        f"rank      {entry.rank}, live at its peak",
        f"tenant    {printable(kind)} ({_BASIS[entry.basis]})",
        f"module    {printable(module_name(entry.module)) or '(none was running)'}",
        f"operator  {printable(entry.operator) or '(none was seen)'}",
        "",
    ]
    if not entry.stack:
        lines.append("no stack: made before it was watched, or outside of Python")
    else:
        lines += ["allocated at, innermost first", *(f"  {printable(frame)}" for frame in entry.stack)]
    return f"{size} {printable(kind)}", "\n".join(lines)


def law_text(loaded: Loaded, place: int) -> tuple[str, str]:
    """Title and text on one state against the law: formula, what is known for it, the sum, the cause."""
    law, facts = loaded.report.memory.laws[place], loaded.analysis.training
    stem = f"memory.laws[{place}]"
    terms = (
        ("law_bytes", "law of the stage"),
        ("padding_bytes", "+ padding of shards to equal size"),
        ("scalar_bytes", "+ step counters of the optimizer"),
        ("unexplained_bytes", "+ unexplained"),
        ("measured_bytes", "= measured"),
    )
    sizes = [(figure(loaded.tree, Unit.BYTES, f"{stem}.{leaf}").text, name) for leaf, name in terms]
    lines = [
        *(f"{size:>12}  {name}" for size, name in sizes),
        "",
        f"cause: {printable(law.cause)}" if law.cause else "measured to the byte what the law gives",
        "",
        *_LAW,
        f"{tenant_name(law.tenant)}: {_SHARDED[law.tenant]}",
        "",
        *_facts(facts),
    ]
    return f"{tenant_name(law.tenant)} of rank {law.rank} against the law", "\n".join(lines)


def _facts(facts: TrainingFacts) -> list[str]:
    known = (
        ("engine", facts.engine),
        ("stage", facts.stage),
        ("Psi, parameters", facts.parameters),
        ("N, ranks that share", facts.shard_ranks),
        ("p, bytes of a parameter", facts.parameter_bytes),
        ("g, bytes of a gradient", facts.gradient_bytes),
        ("k, bytes of its optimizer state", facts.optimizer_state_bytes),
        ("padding elements of the model", facts.padding_elements),
        ("step counters of a rank", facts.step_counters),
    )
    return [
        "of this run",
        *(f"  {name:<32} {'unknown' if value is None else printable(value)}" for name, value in known),
    ]
