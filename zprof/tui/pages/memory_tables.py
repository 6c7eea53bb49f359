"""Tables of the memory screen, of one rank: its largest allocations, and laws."""

import re

from zprof.model.memory import Allocation, Basis, LawCheck
from zprof.model.tenants import Tenant
from zprof.reports.presenters.memory_figures import BY_RULE, telling_frames
from zprof.tui.figures import Unit, figure
from zprof.tui.pages.memory_legend import label
from zprof.tui.pages.memory_missing import missing_table
from zprof.tui.session import Loaded
from zprof.tui.tables import Column, Line, Mark, Opens, Table, Word, numeric

#: From this width on tables have more columns.
MIDDLE = 100
_SHORT = {
    Tenant.PARAMETERS: "params",
    Tenant.OPTIMIZER_STATE: "optimizer",
    Tenant.TEMPORARY_BUFFERS: "temp. buf.",
    Tenant.COMMUNICATION_BUFFERS: "comm. buf.",
}

#: What wrappers around a whole model put before the names of its modules: other screens have them without.
_WRAPPER = re.compile(r"^(?:(?:module|_orig_mod|_forward_module|_fsdp_wrapped_module)(?:\.|$))+")


def module_name(module: str) -> str:
    """A module without the wrappers around the model; empty for the model itself, and for its wrapper."""
    return _WRAPPER.sub("", module)


def _allocated_in(entry: Allocation) -> str:
    """Its module; where there is none, what kind of memory it is."""
    if entry.module:
        return module_name(entry.module) or "(the whole model)"
    return f"({entry.sub.replace('_', ' ') or 'no module'})"


def short_name(tenant: str) -> str:
    """A tenant where there is little room."""
    return _SHORT.get(tenant) or label(tenant)  # type: ignore[call-overload]


def top_table(loaded: Loaded, rank: int) -> Table:
    """The largest allocations that were live at its peak."""
    found = [(at, entry) for at, entry in enumerate(loaded.report.memory.top) if entry.rank == rank]
    title = f"largest live at the peak, rank {rank}"
    if not found:
        otherwise = "no allocation was seen one by one"
        return missing_table(
            loaded.report, "top", title, "allocator events", otherwise, "record in full mode"
        )
    return Table(
        name="top",
        title=title,
        columns=(
            Column(
                title="module",
                says="in whose forward, or backward, it was allocated; in brackets its kind, where in none",
            ),
            numeric("size"),
            Column(title="tenant", says=f"{BY_RULE} before it: told by a rule on its stack"),
            Column(title="kind", from_width=MIDDLE),
            Column(title="allocated at", says="the innermost frame of the program itself"),
            Column(title="operator", from_width=MIDDLE),
        ),
        lines=tuple(_allocation(loaded, place, entry) for place, entry in found),
        help="enter on a row: its whole stack; on a size: the number.",
    )


def _allocation(loaded: Loaded, place: int, entry: Allocation) -> Line:
    return Line(
        key=str(place),
        cells=(
            Word(_allocated_in(entry)),
            figure(loaded.tree, Unit.BYTES, f"memory.top[{place}].bytes"),
            Word(f"{BY_RULE if entry.basis is Basis.RULE else ''}{short_name(entry.tenant)}"),
            Word(entry.sub),
            Word(telling_frame(entry).rpartition("/")[2] or "(no stack)"),
            Word(entry.operator),
        ),
        opens=Opens.ALLOCATION,
        target=place,
    )


def telling_frame(entry: Allocation) -> str:
    """The innermost frame of the program itself, or the innermost one; empty without a stack."""
    frames = telling_frames(("", *entry.stack), 2)
    return frames[1] if len(frames) > 1 else ""


def law_table(loaded: Loaded, rank: int) -> Table:
    """Its model states against the law of the stage."""
    found = [(at, law) for at, law in enumerate(loaded.report.memory.laws) if law.rank == rank]
    title = f"law of the stage against measured, rank {rank}"
    if not found:
        otherwise = "no law is known of this rank's states, or they were not seen complete"
        remedy = "tell the recorder: zprof.record(..., training=TrainingFacts(...))"
        return missing_table(loaded.report, "law", title, "law of the model states", otherwise, remedy)
    return Table(
        name="law",
        title=title,
        columns=(
            Column(title="state"),
            numeric("law"),
            numeric("measured"),
            numeric("padding"),
            numeric("counters", "the optimizer's step counters"),
            numeric("unexplained", "what neither the law nor padding nor counters give"),
            Column(title="cause", rest=True),
        ),
        lines=tuple(_law(loaded, place, law) for place, law in found),
        help="measured = law + padding + counters + unexplained, of each state where it is complete: "
        "gradients when the optimizer begins. At the peak, which the bars are of, not all need be alive. "
        "enter on a state: the law, and the cause.",
        note="each state where it is complete, not at the peak",
    )


def _law(loaded: Loaded, place: int, law: LawCheck) -> Line:
    stem = f"memory.laws[{place}]"
    leaves = ("law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    sizes = [
        figure(loaded.tree, Unit.BYTES, f"{stem}.{leaf}", signed=leaf == "unexplained_bytes")
        for leaf in leaves
    ]
    exact = not law.unexplained_bytes
    return Line(
        key=law.tenant.value,
        cells=(
            Word(short_name(law.tenant)),
            *sizes,
            Word(law.cause or "to the byte", Mark.GOOD if exact else Mark.DOUBTFUL),
        ),
        opens=Opens.LAW,
        target=place,
    )
