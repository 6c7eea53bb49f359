"""Tables of one rank's memory.

Largest allocations, ZeRO formula check, phases, modules, the whole device.
"""

import re

from zprof.model.gaps import GapKind
from zprof.model.memory import Allocation, AllocatorCounters, Basis, DeviceMemory, FormulaCheck, RankMemory
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.presenters.memory_figures import BY_RULE, DEVICE_TERMS, telling_frames
from zprof.tui.figures import Aggregation, Figure, Unit, figure
from zprof.tui.presenters.memory import RANKS, build_missing_table, name_tenant
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Cell, Column, Line, Mark, Opens, Table, TextCell, numeric_column

#: Table width from which on more columns are shown.
MIDDLE_WIDTH = 100
_SHORT = {
    Tenant.PARAMETERS: "params",
    Tenant.OPTIMIZER_STATE: "optimizer",
    Tenant.TEMPORARY_BUFFERS: "temp. buf.",
    Tenant.COMMUNICATION_BUFFERS: "comm. buf.",
}

#: Prefixes that wrappers of a whole model add to module names; other screens show names without them.
_WRAPPER = re.compile(r"^(?:(?:module|_orig_mod|_forward_module|_fsdp_wrapped_module)(?:\.|$))+")


def strip_wrappers(module: str) -> str:
    """Return a module name without model wrappers; empty for the model itself or its wrapper."""
    return _WRAPPER.sub("", module)


def _name_module(entry: Allocation) -> str:
    """Return the allocation's module, or the kind of memory if it has none."""
    if entry.module:
        return strip_wrappers(entry.module) or "(the whole model)"
    return f"({entry.sub.replace('_', ' ') or 'no module'})"


def shorten_tenant(tenant: str) -> str:
    """Return a short name of a tenant."""
    return _SHORT.get(tenant) or name_tenant(tenant)  # type: ignore[call-overload]


def build_top_table(loaded: LoadedRun, rank: int) -> Table:
    """Return the largest allocations that were live at the rank's peak."""
    found = [(at, entry) for at, entry in enumerate(loaded.report.memory.top) if entry.rank == rank]
    title = f"largest live at the peak, rank {rank}"
    if not found:
        otherwise = "no allocation was seen one by one"
        return build_missing_table(
            loaded.report, "top", title, GapKind.ALLOCATOR_EVENTS, otherwise, "record in full mode"
        )
    return Table(
        name="top",
        title=title,
        columns=(
            Column(
                title="module",
                says="in whose forward, or backward, it was allocated; in brackets its kind, where in none",
            ),
            numeric_column("size"),
            Column(title="tenant", says=f"{BY_RULE} before it: told by a rule on its stack"),
            Column(title="kind", from_width=MIDDLE_WIDTH),
            Column(title="allocated at", says="the innermost frame of the program itself"),
            Column(title="operator", from_width=MIDDLE_WIDTH),
        ),
        lines=tuple(_build_allocation_line(loaded, place, entry) for place, entry in found),
        help="enter on a row: its whole stack; on a size: the number.",
    )


def _build_allocation_line(loaded: LoadedRun, place: int, entry: Allocation) -> Line:
    return Line(
        key=str(place),
        cells=(
            TextCell(_name_module(entry)),
            figure(loaded.tree, Unit.BYTES, f"memory.top[{place}].bytes"),
            TextCell(f"{BY_RULE if entry.basis is Basis.RULE else ''}{shorten_tenant(entry.tenant)}"),
            TextCell(entry.sub),
            TextCell(find_telling_frame(entry).rpartition("/")[2] or "(no stack)"),
            TextCell(entry.operator),
        ),
        opens=Opens.ALLOCATION,
        target=place,
    )


def find_telling_frame(entry: Allocation) -> str:
    """Return the innermost frame of the user's program, else the innermost; empty without a stack."""
    frames = telling_frames(("", *entry.stack), 2)
    return frames[1] if len(frames) > 1 else ""


def build_formula_table(loaded: LoadedRun, rank: int) -> Table:
    """Return the rank's model states against the ZeRO formula of the stage."""
    found = [(at, state) for at, state in enumerate(loaded.report.memory.laws) if state.rank == rank]
    title = f"ZeRO formula against measured, rank {rank}"
    if not found:
        otherwise = "no formula is known for this rank's states, or they were never complete"
        remedy = "tell the recorder: zprof.record(..., training=TrainingFacts(...))"
        return build_missing_table(loaded.report, "formulas", title, GapKind.MODEL_STATES, otherwise, remedy)
    return Table(
        name="formulas",
        title=title,
        columns=(
            Column(title="state"),
            numeric_column("formula"),
            numeric_column("measured"),
            numeric_column("padding"),
            numeric_column("counters", "the optimizer's step counters"),
            numeric_column("unexplained", "what neither the formula nor padding nor counters give"),
            Column(title="cause", rest=True),
        ),
        lines=tuple(_build_formula_line(loaded, place, state) for place, state in found),
        help="measured = formula + padding + counters + unexplained, of each state where it is complete: "
        "gradients when the optimizer begins. At the peak, which the bars are of, not all need be alive. "
        "enter on a state: the formula, and the cause.",
        note="each state where it is complete, not at the peak",
    )


def _build_formula_line(loaded: LoadedRun, place: int, state: FormulaCheck) -> Line:
    stem = f"memory.laws[{place}]"
    leaves = ("law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    sizes = [
        figure(loaded.tree, Unit.BYTES, f"{stem}.{leaf}", signed=leaf == "unexplained_bytes")
        for leaf in leaves
    ]
    exact = not state.unexplained_bytes
    return Line(
        key=state.tenant.value,
        cells=(
            TextCell(shorten_tenant(state.tenant)),
            *sizes,
            TextCell(state.cause or "to the byte", Mark.GOOD if exact else Mark.DOUBTFUL),
        ),
        opens=Opens.LAW,
        target=place,
    )


def build_phases_table(loaded: LoadedRun, rank: int) -> Table:
    """Return the rank's peak in each phase, before the first step, and of its host memory."""
    memory = loaded.report.memory
    lines = [
        _build_point_line(loaded, f"memory.phases[{at}]", TextCell(entry.phase), entry.step)
        for at, entry in enumerate(memory.phases)
        if entry.rank == rank
    ]
    lines += _build_other_lines(loaded, "init", memory.init, rank, "before step 1")
    lines += _build_other_lines(loaded, "host", memory.host, rank, "host memory")
    title = f"highest point of each phase, rank {rank}"
    if not lines:
        otherwise = "no phase is known of this rank's memory"
        return build_missing_table(
            loaded.report, "phases", title, None, otherwise, "zprof record marks phases"
        )
    narrow = (Tenant.GRADIENTS, Tenant.ACTIVATIONS, Tenant.COMMUNICATION_BUFFERS)
    return Table(
        name="phases",
        title=title,
        columns=(
            Column(title="phase"),
            numeric_column("step"),
            numeric_column("peak"),
            *(
                numeric_column(shorten_tenant(t), from_width=0 if t in narrow else MIDDLE_WIDTH)
                for t in DISPLAY_ORDER
            ),
            numeric_column("untagged", from_width=MIDDLE_WIDTH),
        ),
        lines=tuple(lines),
        help="The highest live bytes in each phase over the steps of the window; tenants sum to the peak.",
    )


def _build_point_line(loaded: LoadedRun, stem: str, name: TextCell, step: int | None) -> Line:
    sizes = [figure(loaded.tree, Unit.BYTES, f"{stem}.tenants.{tenant.value}") for tenant in DISPLAY_ORDER]
    at: Cell = TextCell("") if step is None or step < 0 else TextCell(str(step))
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


def _build_other_lines(
    loaded: LoadedRun, leaf: str, entries: tuple[RankMemory, ...], rank: int, name: str
) -> list[Line]:
    return [
        _build_point_line(loaded, f"memory.{leaf}[{at}]", TextCell(name), entry.peak_step)
        for at, entry in enumerate(entries)
        if entry.rank == rank
    ]


def build_modules_table(loaded: LoadedRun, rank: int) -> Table:
    """Return what the rank's modules allocated, each including its submodules."""
    found = [(at, entry) for at, entry in enumerate(loaded.report.memory.modules) if entry.rank == rank]
    found.sort(key=lambda item: -item[1].at_rank_peak_bytes)
    title = f"who allocated it, rank {rank}"
    if not found:
        otherwise = "no module is known of this rank's memory"
        return build_missing_table(
            loaded.report, "modules", title, None, otherwise, "give zprof.record the model"
        )
    peak = f"{RANKS}[{_find_place(loaded, rank)}].peak_bytes"
    return Table(
        name="modules",
        title=title,
        columns=(
            Column(title="module", says="with all inside of it"),
            numeric_column("at the peak", "live at the rank's own peak"),
            numeric_column("of it"),
            numeric_column("most at once", "the most that was live of it at one time"),
        ),
        lines=tuple(
            Line(
                key=str(at),
                cells=(
                    TextCell(_name_owner(entry.module)),
                    figure(loaded.tree, Unit.BYTES, f"memory.modules[{at}].at_rank_peak_bytes"),
                    _share(loaded, f"memory.modules[{at}].at_rank_peak_bytes", peak),
                    figure(loaded.tree, Unit.BYTES, f"memory.modules[{at}].peak_bytes"),
                ),
            )
            for at, entry in found
        ),
        help="A module counts all modules inside of it, so that the rows do not sum.",
    )


def _name_owner(module: str) -> str:
    """Return a module's name; a wrapped model appears twice, once with its wrapper."""
    return strip_wrappers(module) or ("(the model in its wrapper)" if module else "(the whole model)")


def _share(loaded: LoadedRun, part: str, whole: str) -> Figure:
    return figure(loaded.tree, Unit.RATIO, part, whole, how=Aggregation.SHARE)


def _find_place(loaded: LoadedRun, rank: int) -> int:
    return next(at for at, entry in enumerate(loaded.report.memory.per_rank) if entry.rank == rank)


_COUNTERS = (
    ("peak_allocated_bytes", "the allocator's own peak, allocated", Unit.BYTES),
    ("peak_reserved_bytes", "the allocator's own peak, reserved", Unit.BYTES),
    ("retries", "allocations that were tried again", Unit.COUNT),
    ("ooms", "out of memory", Unit.COUNT),
)


def build_device_table(loaded: LoadedRun, rank: int) -> Table | None:
    """Return the split of the device's memory by moment, or None if no device was measured."""
    memory = loaded.report.memory
    moments = [(at, entry) for at, entry in enumerate(memory.devices) if entry.rank == rank]
    counters = [(at, entry) for at, entry in enumerate(memory.counters) if entry.rank == rank]
    if not moments and not counters:
        return None
    lines = [_build_term_line(loaded, moments, *term) for term in DEVICE_TERMS if moments]
    return Table(
        name="device",
        title=f"the whole device, rank {rank}",
        columns=(
            Column(title="term"),
            *(Column(title=entry.moment, says="when it was so", numeric=True) for _, entry in moments),
            *([] if moments else [Column(title="since the process began", numeric=True)]),
        ),
        lines=(
            *(line for line in lines if any(cell.text != "unknown" for cell in line.cells[1:])),
            *(
                line
                for at, entry in counters
                for line in _build_counter_lines(loaded, at, entry, max(1, len(moments)))
            ),
        ),
        help="Each sum (=) stands under its terms. Running out of memory is about the reserved peak.",
    )


def _build_term_line(
    loaded: LoadedRun, moments: list[tuple[int, DeviceMemory]], leaf: str, name: str
) -> Line:
    sizes = [figure(loaded.tree, Unit.BYTES, f"memory.devices[{at}].{leaf}") for at, _ in moments]
    mark = Mark.TITLE if name.startswith("=") else Mark.PLAIN
    return Line(key=leaf, cells=(TextCell(name), *sizes), mark=mark)


def _build_counter_lines(loaded: LoadedRun, at: int, entry: AllocatorCounters, columns: int) -> list[Line]:
    lines = []
    for leaf, name, unit in _COUNTERS:
        if getattr(entry, leaf) is not None:
            number = figure(loaded.tree, unit, f"memory.counters[{at}].{leaf}")
            blank: list[Cell] = [TextCell("")] * (columns - 1)
            lines.append(Line(key=f"{at}.{leaf}", cells=(TextCell(name), number, *blank)))
    return lines
