"""Build the tables of one rank's memory.

They are the largest allocations, the ZeRO formula check, phases, modules, and the entire device.
"""

import re

from zprof.model.gaps import GapKind
from zprof.model.leaves import read_value
from zprof.model.memory import Allocation, AllocatorCounters, Basis, DeviceMemory, FormulaCheck, RankMemory
from zprof.model.quantities import ESTIMATE_SIGN, UNKNOWN, Aggregation, Value
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.reports.presenters.memory_formatting import (
    DEVICE_TERMS,
    select_user_frames,
)
from zprof.reports.presenters.memory_groups import count_blocks, name_place
from zprof.reports.table import Cell, Column, Kind, Mark, Marked, Opens, Row, Table
from zprof.tui.presenters.memory import RANKS, build_missing_table, name_tenant
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text

#: Minimum table width for additional columns.
MIDDLE_WIDTH = 100
_SHORT = {
    Tenant.PARAMETERS: "params",
    Tenant.OPTIMIZER_STATE: "optimizer",
    Tenant.TEMPORARY_BUFFERS: "temp. buf.",
    Tenant.COMMUNICATION_BUFFERS: "comm. buf.",
}

#: Prefixes that model wrappers add to module names; other screens show names without them.
_WRAPPER = re.compile(r"^(?:(?:module|_orig_mod|_forward_module|_fsdp_wrapped_module)(?:\.|$))+")


def strip_wrappers(module: str) -> str:
    """Return a module name without model wrappers; empty for the model itself or its wrapper."""
    return _WRAPPER.sub("", module)


def _name_module(entry: Allocation) -> str:
    """Return the allocation's module, or the blocks of a group, or the kind of memory."""
    if entry.module:
        return strip_wrappers(entry.module) or "(entire model)"
    if entry.total_bytes is not None:
        return f"({count_blocks(entry.count)})"
    return f"({entry.sub.replace('_', ' ') or 'no module'})"


def shorten_tenant(tenant: str) -> str:
    """Return the short name of a tenant."""
    return _SHORT.get(tenant) or name_tenant(tenant)  # type: ignore[call-overload]


def build_top_table(loaded: LoadedRun, rank: int) -> Table:
    """Build the table of the largest allocations that were live at the rank's peak."""
    entries = [(index, entry) for index, entry in enumerate(loaded.report.memory.top) if entry.rank == rank]
    title = f"largest live allocations at the peak, rank {rank}"
    if not entries:
        reason = "individual allocations were not recorded"
        return build_missing_table(
            loaded.report, "top", title, GapKind.ALLOCATOR_EVENTS, reason, "record in full mode"
        )
    return Table(
        name="top",
        title=title,
        columns=(
            Column(
                title="module",
                kind=Kind.TEXT,
                help="module whose forward or backward allocated it; in brackets the blocks of a snapshot's "
                "group, else the kind of memory",
            ),
            Column(title="size"),
            Column(
                title="tenant",
                kind=Kind.TEXT,
                help=f"{ESTIMATE_SIGN} prefix: known by the sizes of the blocks alone",
            ),
            Column(title="kind", kind=Kind.TEXT, from_width=MIDDLE_WIDTH),
            Column(title="allocated at", kind=Kind.TEXT, help="innermost stack frame of the user's program"),
            Column(title="operator", kind=Kind.TEXT, from_width=MIDDLE_WIDTH),
        ),
        rows=tuple(_build_allocation_line(loaded, index, entry) for index, entry in entries),
        help="Press enter on a row for the full call stack, and on a size to explain the number.",
    )


def _build_allocation_line(loaded: LoadedRun, index: int, entry: Allocation) -> Row:
    return Row(
        key=str(index),
        cells=(
            _name_module(entry),
            read_value(loaded.report, _find_size_leaf(index, entry)),
            f"{ESTIMATE_SIGN * (entry.basis is Basis.SIZES)}{shorten_tenant(entry.tenant)}",
            entry.sub,
            _name_place(entry),
            entry.operator,
        ),
        opens=Opens.ALLOCATION,
        target=index,
    )


def _find_size_leaf(index: int, entry: Allocation) -> str:
    """Return the leaf of an allocation's size; a group of a snapshot has a total."""
    return f"memory.top[{index}].{'bytes' if entry.total_bytes is None else 'total_bytes'}"


def _name_place(entry: Allocation) -> str:
    """Return the frame that allocated, else why it is unknown."""
    if entry.groups > 1 or entry.before:
        return f"({name_place(entry)})"
    return (entry.where or find_telling_frame(entry)).rpartition("/")[2] or "(no stack)"


def find_telling_frame(entry: Allocation) -> str:
    """Return the innermost frame of the user's program, else the innermost frame; empty without a stack."""
    frames = select_user_frames(("", *entry.stack), 2)
    return frames[1] if len(frames) > 1 else ""


def build_formula_table(loaded: LoadedRun, rank: int) -> Table:
    """Build the table of the rank's model states, compared with the ZeRO formula for the stage."""
    states = [(index, state) for index, state in enumerate(loaded.report.memory.laws) if state.rank == rank]
    title = f"ZeRO formula and measured, rank {rank}"
    if not states:
        reason = "no formula is known for this rank's model states, or they were never complete"
        remedy = "pass the training facts: zprof.record(..., training=TrainingFacts(...))"
        return build_missing_table(loaded.report, "formulas", title, GapKind.MODEL_STATES, reason, remedy)
    return Table(
        name="formulas",
        title=title,
        columns=(
            Column(title="state", kind=Kind.TEXT),
            Column(title="formula"),
            Column(title="measured"),
            Column(title="padding"),
            Column(title="counters", help="the optimizer's step counters"),
            Column(title="unexplained", help="not covered by formula, padding and counters"),
            Column(title="cause", kind=Kind.TEXT, takes_rest=True),
        ),
        rows=tuple(_build_formula_line(loaded, index, state) for index, state in states),
        help="measured = formula + padding + counters + unexplained. Each state is measured when it is "
        "complete (gradients when the optimizer starts), not at the peak that the bars show, at which some "
        "states may not be live. Press enter on a state for the formula and the cause.",
        note="each state when it is complete, not at the peak",
    )


def _build_formula_line(loaded: LoadedRun, index: int, state: FormulaCheck) -> Row:
    stem = f"memory.laws[{index}]"
    leaves = ("law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    sizes = [
        read_value(loaded.report, f"{stem}.{leaf}", signed=leaf == "unexplained_bytes") for leaf in leaves
    ]
    is_exact = not state.unexplained_bytes
    return Row(
        key=state.tenant.value,
        cells=(
            shorten_tenant(state.tenant),
            *sizes,
            Marked(state.cause or "exact", Mark.GOOD if is_exact else Mark.DOUBTFUL),
        ),
        opens=Opens.FORMULA,
        target=index,
    )


def build_phases_table(loaded: LoadedRun, rank: int) -> Table:
    """Build the table of the rank's peaks: in each phase, before the first step, and of its host memory."""
    memory = loaded.report.memory
    lines = [
        _build_point_line(loaded, f"memory.phases[{at}]", entry.phase, entry.step)
        for at, entry in enumerate(memory.phases)
        if entry.rank == rank
    ]
    lines += _build_other_lines(loaded, "init", memory.init, rank, "before step 1")
    lines += _build_other_lines(loaded, "host", memory.host, rank, "host memory")
    title = f"peak of each phase, rank {rank}"
    if not lines:
        reason = "the phases of this rank's memory are unknown"
        return build_missing_table(loaded.report, "phases", title, None, reason, "zprof record marks phases")
    narrow = (Tenant.GRADIENTS, Tenant.ACTIVATIONS, Tenant.COMMUNICATION_BUFFERS)
    return Table(
        name="phases",
        title=title,
        columns=(
            Column(title="phase", kind=Kind.TEXT),
            Column(title="step"),
            Column(title="peak"),
            *(
                Column(title=shorten_tenant(t), from_width=0 if t in narrow else MIDDLE_WIDTH)
                for t in DISPLAY_ORDER
            ),
            Column(title="untagged", from_width=MIDDLE_WIDTH),
        ),
        rows=tuple(lines),
        help="Maximum of live bytes in each phase over the steps of the window. The tenants and untagged "
        "sum to the peak.",
    )


def _build_point_line(loaded: LoadedRun, stem: str, name: str, step: int | None) -> Row:
    sizes = [read_value(loaded.report, f"{stem}.tenants.{tenant.value}") for tenant in DISPLAY_ORDER]
    at: Cell = "" if step is None or step < 0 else str(step)
    return Row(
        key=stem,
        cells=(
            name,
            at,
            read_value(loaded.report, f"{stem}.peak_bytes"),
            *sizes,
            read_value(loaded.report, f"{stem}.untagged_bytes"),
        ),
    )


def _build_other_lines(
    loaded: LoadedRun, leaf: str, entries: tuple[RankMemory, ...], rank: int, name: str
) -> list[Row]:
    return [
        _build_point_line(loaded, f"memory.{leaf}[{at}]", name, entry.peak_step)
        for at, entry in enumerate(entries)
        if entry.rank == rank
    ]


def build_modules_table(loaded: LoadedRun, rank: int) -> Table:
    """Build the table of memory allocated by the rank's modules, each including its submodules."""
    modules = loaded.report.memory.modules
    entries = [(index, entry) for index, entry in enumerate(modules) if entry.rank == rank]
    entries.sort(key=lambda item: -item[1].at_rank_peak_bytes)
    title = f"memory by module, rank {rank}"
    if not entries:
        reason = "the modules of this rank's memory are unknown"
        return build_missing_table(
            loaded.report, "modules", title, None, reason, "pass the model to zprof.record"
        )
    peak = f"{RANKS}[{_find_rank_index(loaded, rank)}].peak_bytes"
    return Table(
        name="modules",
        title=title,
        columns=(
            Column(title="module", kind=Kind.TEXT, help="including its submodules"),
            Column(title="at the peak", help="live at the rank's own peak"),
            Column(title="of the peak"),
            Column(title="own peak", help="maximum of the module's live bytes"),
        ),
        rows=tuple(
            Row(
                key=str(at),
                cells=(
                    _name_owner(entry.module),
                    read_value(loaded.report, f"memory.modules[{at}].at_rank_peak_bytes"),
                    _make_share(loaded, f"memory.modules[{at}].at_rank_peak_bytes", peak),
                    read_value(loaded.report, f"memory.modules[{at}].peak_bytes"),
                ),
            )
            for at, entry in entries
        ),
        help="Each module includes its submodules, so the rows do not add up.",
    )


def _name_owner(module: str) -> str:
    """Return a module's name; a wrapped model appears twice, once with its wrapper."""
    return strip_wrappers(module) or ("(wrapped model)" if module else "(entire model)")


def _make_share(loaded: LoadedRun, part: str, total: str) -> Value:
    return read_value(loaded.report, part, total, how=Aggregation.SHARE)


def _find_rank_index(loaded: LoadedRun, rank: int) -> int:
    return next(at for at, entry in enumerate(loaded.report.memory.per_rank) if entry.rank == rank)


_COUNTERS = (
    ("peak_allocated_bytes", "peak allocated (allocator's counter)"),
    ("peak_reserved_bytes", "peak reserved (allocator's counter)"),
    ("retries", "allocation retries"),
    ("ooms", "out-of-memory errors"),
)


def build_device_table(loaded: LoadedRun, rank: int) -> Table | None:
    """Build the table of the device's memory at each moment, or None if no device was measured."""
    memory = loaded.report.memory
    moments = [(at, entry) for at, entry in enumerate(memory.devices) if entry.rank == rank]
    counters = [(at, entry) for at, entry in enumerate(memory.counters) if entry.rank == rank]
    if not moments and not counters:
        return None
    lines = [_build_term_line(loaded, moments, *term) for term in DEVICE_TERMS if moments]
    return Table(
        name="device",
        title=f"device memory, rank {rank}",
        columns=(
            Column(title="term", kind=Kind.TEXT),
            *(
                Column(
                    title=entry.moment,
                    help="moment of the measurement",
                )
                for _, entry in moments
            ),
            *(
                []
                if moments
                else [
                    Column(
                        title="since process start",
                    )
                ]
            ),
        ),
        rows=(
            *(line for line in lines if any(get_text(cell) != UNKNOWN for cell in line.cells[1:])),
            *(
                line
                for at, entry in counters
                for line in _build_counter_lines(loaded, at, entry, max(1, len(moments)))
            ),
        ),
        help="Each sum (=) follows its terms. The reserved peak decides whether the device runs out of "
        "memory.",
    )


def _build_term_line(loaded: LoadedRun, moments: list[tuple[int, DeviceMemory]], leaf: str, name: str) -> Row:
    sizes = [read_value(loaded.report, f"memory.devices[{at}].{leaf}") for at, _ in moments]
    mark = Mark.TITLE if name.startswith("=") else Mark.PLAIN
    return Row(key=leaf, cells=(name, *sizes), mark=mark)


def _build_counter_lines(loaded: LoadedRun, at: int, entry: AllocatorCounters, columns: int) -> list[Row]:
    lines = []
    for leaf, name in _COUNTERS:
        if getattr(entry, leaf) is not None:
            number = read_value(loaded.report, f"memory.counters[{at}].{leaf}")
            blank: list[Cell] = [""] * (columns - 1)
            lines.append(Row(key=f"{at}.{leaf}", cells=(name, number, *blank)))
    return lines
