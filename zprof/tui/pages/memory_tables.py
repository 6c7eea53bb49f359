"""Tables of the memory screen, of one rank: its largest allocations, laws, phases and modules."""

from zprof.model.memory import Allocation, Basis, LawCheck, RankMemory
from zprof.model.tenants import SHOWN, Tenant
from zprof.reports.shown.memory_names import BY_RULE, tenant_name
from zprof.reports.shown.memory_presenter import telling_frames
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.pages.memory import RANKS, label, moment_of
from zprof.tui.pages.memory_missing import missing_table
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Column, Line, Mark, Opens, Table, Word, numeric

_MIDDLE, _WIDE = 100, 160
_SHORT = {
    Tenant.PARAMETERS: "params",
    Tenant.OPTIMIZER_STATE: "optimizer",
    Tenant.TEMPORARY_BUFFERS: "temp. buf.",
    Tenant.COMMUNICATION_BUFFERS: "comm. buf.",
}


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
            Column(title="module", says="in whose forward, or backward, it was allocated"),
            numeric("size"),
            Column(title="tenant", says=f"{BY_RULE} before it: told by a rule on its stack"),
            Column(title="kind", from_width=_MIDDLE),
            Column(title="allocated at", says="the innermost frame of the program itself"),
            Column(title="operator", from_width=_MIDDLE),
        ),
        lines=tuple(_allocation(loaded, place, entry) for place, entry in found),
        help="enter on a row: its whole stack; on a size: the number.",
    )


def _allocation(loaded: Loaded, place: int, entry: Allocation) -> Line:
    return Line(
        key=str(place),
        cells=(
            Word(entry.module or "(no module)"),
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
            numeric("counters", "the optimizer's step counters", from_width=_MIDDLE),
            numeric("unexplained", "what neither the law nor padding nor counters give"),
            Column(title="cause", rest=True),
        ),
        lines=tuple(_law(loaded, place, law) for place, law in found),
        help="measured = law + padding + counters + unexplained. enter on a state: the law, and the cause.",
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
            Word(tenant_name(law.tenant)),
            *sizes,
            Word(law.cause or "to the byte", Mark.GOOD if exact else Mark.DOUBTFUL),
        ),
        opens=Opens.LAW,
        target=place,
    )


def phases_table(loaded: Loaded, rank: int) -> Table:
    """Its highest point in each phase, before the first step, and of its host memory."""
    memory = loaded.report.memory
    lines = [
        _point(loaded, f"memory.phases[{at}]", Word(entry.phase), entry.step)
        for at, entry in enumerate(memory.phases)
        if entry.rank == rank
    ]
    lines += _others(loaded, "init", memory.init, rank, "before step 1")
    lines += _others(loaded, "host", memory.host, rank, "host memory")
    title = f"highest point of each phase, rank {rank}"
    if not lines:
        otherwise = "no phase is known of this rank's memory"
        return missing_table(loaded.report, "phases", title, "phases", otherwise, "zprof record marks phases")
    narrow = (Tenant.GRADIENTS, Tenant.ACTIVATIONS, Tenant.COMMUNICATION_BUFFERS)
    return Table(
        name="phases",
        title=title,
        columns=(
            Column(title="phase"),
            numeric("step"),
            numeric("peak"),
            *(numeric(short_name(t), from_width=0 if t in narrow else _MIDDLE) for t in SHOWN),
            numeric("untagged", from_width=_MIDDLE),
        ),
        lines=tuple(lines),
        help="The highest live bytes in each phase over the steps of the window; tenants sum to the peak.",
    )


def _point(loaded: Loaded, stem: str, name: Word, step: int | None) -> Line:
    sizes = [figure(loaded.tree, Unit.BYTES, f"{stem}.tenants.{tenant.value}") for tenant in SHOWN]
    at: Cell = Word("") if step is None or step < 0 else Word(str(step))
    return Line(
        key=stem,
        cells=(
            name,
            at,
            figure(loaded.tree, Unit.BYTES, f"{stem}.peak_bytes"),
            *sizes,
            figure(loaded.tree, Unit.BYTES, f"{stem}.untagged_bytes"),
        ),
    )


def _others(loaded: Loaded, leaf: str, entries: tuple[RankMemory, ...], rank: int, name: str) -> list[Line]:
    return [
        _point(loaded, f"memory.{leaf}[{at}]", Word(name), entry.peak_step)
        for at, entry in enumerate(entries)
        if entry.rank == rank
    ]


def modules_table(loaded: Loaded, rank: int) -> Table:
    """What its modules allocated, each with all inside of it."""
    found = [(at, entry) for at, entry in enumerate(loaded.report.memory.modules) if entry.rank == rank]
    found.sort(key=lambda item: -item[1].at_rank_peak_bytes)
    title = f"who allocated it, rank {rank}"
    if not found:
        otherwise = "no module is known of this rank's memory"
        return missing_table(
            loaded.report, "modules", title, "modules", otherwise, "give zprof.record the model"
        )
    peak = f"{RANKS}[{_place(loaded, rank)}].peak_bytes"
    return Table(
        name="modules",
        title=title,
        columns=(
            Column(title="module", says="with all inside of it"),
            numeric("at the peak", "live at the rank's own peak"),
            numeric("of it"),
            numeric("most at once", "the most that was live of it at one time"),
        ),
        lines=tuple(
            Line(
                key=str(at),
                cells=(
                    Word(entry.module or "(the whole model)"),
                    figure(loaded.tree, Unit.BYTES, f"memory.modules[{at}].at_rank_peak_bytes"),
                    _share(loaded, f"memory.modules[{at}].at_rank_peak_bytes", peak),
                    figure(loaded.tree, Unit.BYTES, f"memory.modules[{at}].peak_bytes"),
                ),
            )
            for at, entry in found
        ),
        help="A module counts all modules inside of it, so that the rows do not sum.",
    )


def _share(loaded: Loaded, part: str, whole: str) -> Figure:
    return figure(loaded.tree, Unit.RATIO, part, whole, how=How.SHARE)


def _place(loaded: Loaded, rank: int) -> int:
    return next(at for at, entry in enumerate(loaded.report.memory.per_rank) if entry.rank == rank)


__all__ = ["law_table", "modules_table", "moment_of", "phases_table", "short_name", "top_table"]
