"""Tables of the memory screen, of one rank: its phases, and what its modules allocated."""

from zprof.model.memory import RankMemory
from zprof.model.tenants import SHOWN, Tenant
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.pages.memory_legend import RANKS
from zprof.tui.pages.memory_missing import missing_table
from zprof.tui.pages.memory_tables import MIDDLE, module_name, short_name
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Column, Line, Table, Word, numeric


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
            *(numeric(short_name(t), from_width=0 if t in narrow else MIDDLE) for t in SHOWN),
            numeric("untagged", from_width=MIDDLE),
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
                    Word(_whose(entry.module)),
                    figure(loaded.tree, Unit.BYTES, f"memory.modules[{at}].at_rank_peak_bytes"),
                    _share(loaded, f"memory.modules[{at}].at_rank_peak_bytes", peak),
                    figure(loaded.tree, Unit.BYTES, f"memory.modules[{at}].peak_bytes"),
                ),
            )
            for at, entry in found
        ),
        help="A module counts all modules inside of it, so that the rows do not sum.",
    )


def _whose(module: str) -> str:
    """The name of a module; the model stands there twice where something is wrapped around it."""
    return module_name(module) or ("(the model in its wrapper)" if module else "(the whole model)")


def _share(loaded: Loaded, part: str, whole: str) -> Figure:
    return figure(loaded.tree, Unit.RATIO, part, whole, how=How.SHARE)


def _place(loaded: Loaded, rank: int) -> int:
    return next(at for at, entry in enumerate(loaded.report.memory.per_rank) if entry.rank == rank)
