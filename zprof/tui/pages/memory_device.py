"""The table of the whole device: from what the tenants hold to what the device has."""

from zprof.model.memory import AllocatorCounters, DeviceMemory
from zprof.reports.presenters.memory_figures import DEVICE_TERMS
from zprof.tui.figures import Unit, figure
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Column, Line, Mark, Table, Word

_COUNTERS = (
    ("peak_allocated_bytes", "the allocator's own peak, allocated", Unit.BYTES),
    ("peak_reserved_bytes", "the allocator's own peak, reserved", Unit.BYTES),
    ("retries", "allocations that were tried again", Unit.COUNT),
    ("ooms", "out of memory", Unit.COUNT),
)


def device_table(loaded: Loaded, rank: int) -> Table | None:
    """Where the memory of the rank's device is; None where no device was measured."""
    memory = loaded.report.memory
    moments = [(at, entry) for at, entry in enumerate(memory.devices) if entry.rank == rank]
    counters = [(at, entry) for at, entry in enumerate(memory.counters) if entry.rank == rank]
    if not moments and not counters:
        return None
    lines = [_term(loaded, moments, *term) for term in DEVICE_TERMS if moments]
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
            *(line for at, entry in counters for line in _counted(loaded, at, entry, max(1, len(moments)))),
        ),
        help="Each sum (=) stands under its terms. Running out of memory is about the reserved peak.",
    )


def _term(loaded: Loaded, moments: list[tuple[int, DeviceMemory]], leaf: str, name: str) -> Line:
    sizes = [figure(loaded.tree, Unit.BYTES, f"memory.devices[{at}].{leaf}") for at, _ in moments]
    mark = Mark.TITLE if name.startswith("=") else Mark.PLAIN
    return Line(key=leaf, cells=(Word(name), *sizes), mark=mark)


def _counted(loaded: Loaded, at: int, entry: AllocatorCounters, columns: int) -> list[Line]:
    lines = []
    for leaf, name, unit in _COUNTERS:
        if getattr(entry, leaf) is not None:
            number = figure(loaded.tree, unit, f"memory.counters[{at}].{leaf}")
            blank: list[Cell] = [Word("")] * (columns - 1)
            lines.append(Line(key=f"{at}.{leaf}", cells=(Word(name), number, *blank)))
    return lines
