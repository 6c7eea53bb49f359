"""Read and check a rank's memory tables as numpy columns, and the steps and phases of its window.

Impossible values are rejected before a sum can overflow.

Known annotations are ``ProfilerStep#7`` and ``Optimizer.step#AdamW.step`` (both written by torch), and ranges
named exactly like a phase (``backward``, also ``## backward ##``). Other names are ignored.
"""

import bisect
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Columns, Groups
from zprof.base.errors import BadInput
from zprof.model.collectives import OPERATOR_PREFIXES
from zprof.model.tenants import PRECEDENCE, Tenant
from zprof.model.training import Phase
from zprof.run.manifest import rank_folder
from zprof.run.reader import Run
from zprof.run.schema import TABLES

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
#: Times and sums of sizes stay below this, so their differences and sums also fit in int64.
_MAX_VALUE = 1 << 61
_COPY_AGAIN = "copy the run again, or record it again"
_TIMES = ("time_ns", "allocated_ns", "freed_ns", "released_ns", "mapped_ns", "unmapped_ns")
_SIZES = ("bytes", "requested_bytes", "block_bytes")
#: Maximum frames per stack, and characters per frame, in a report.
MAX_FRAMES = 64
MAX_FRAME_LENGTH = 400
#: End of a block that was never freed.
FOREVER = np.iinfo(np.int64).max
#: Code of unclaimed bytes; lower codes are positions in ``PRECEDENCE``.
UNTAGGED = len(PRECEDENCE)
TENANT_CODES: dict[Tenant, int] = {tenant: code for code, tenant in enumerate(PRECEDENCE)}
MEMORY = "memory"
#: The window from program start to the first step, also the name of its time outside all phases.
INIT = "init"
_PHASES = frozenset(Phase)
_BEGIN, _END = "annotation_begin", "annotation_end"
_STEP, _OPTIMIZER = "ProfilerStep#", "Optimizer.step#"
_MAX_DIGITS = 15


def read_checked_table(run: Run, rank: int, name: str) -> Columns:
    """Return one of a rank's tables.

    Raises:
        BadInput: damaged, with a null in a non-nullable column, or with a negative or impossibly large
        number.
    """
    table = Columns.from_arrow(run.table(rank, name))
    path = str(rank_folder(run.path, rank) / f"{name}.parquet")
    for field in TABLES[name]:
        if not field.nullable and not table.known(field.name).all():
            raise BadInput(f"{path}: column {field.name!r} has missing values", hint=_COPY_AGAIN)
    for column in _TIMES:
        if column in table and not _is_within(table.ints(column)[table.known(column)], 0, _MAX_VALUE):
            raise BadInput(f"{path}: column {column!r} has impossible times", hint=_COPY_AGAIN)
    for column in _SIZES:
        if column in table:
            sizes = table.ints(column)[table.known(column)]
            total = float(np.sum(sizes.astype(np.float64)))
            if not _is_within(sizes, 0, _MAX_VALUE) or total >= _MAX_VALUE:
                raise BadInput(f"{path}: column {column!r} has impossible sizes", hint=_COPY_AGAIN)
    return table


def read_stacks(
    run: Run, rank: int, alloc: Columns, generations: frozenset[int]
) -> Mapping[int, tuple[str, ...]]:
    """Return the frames of storages by generation, innermost first; storages without a stack are left out."""
    if not generations or not run.has_table(rank, "stack"):
        return {}
    generation = alloc.ints("generation")
    rows = alloc.at(np.isin(generation, list(generations)) & (generation >= 0) & alloc.known("stack"))
    number = dict(zip(rows.ints("generation").tolist(), rows.ints("stack").tolist(), strict=True))
    table = Columns.from_arrow(run.table(rank, "stack"))
    table = table.at(np.isin(table.ints("stack"), sorted(set(number.values())))).sort_by("stack", "depth")
    frames: dict[int, tuple[str, ...]] = {}
    for places in Groups(table.ints("stack")).split():
        stack = table.at(places[:MAX_FRAMES])
        lines = zip(stack.texts("file"), stack.ints("line").tolist(), stack.texts("function"), strict=True)
        frames[int(stack.ints("stack")[0])] = tuple(
            f"{file}:{line} {function}"[:MAX_FRAME_LENGTH] for file, line, function in lines
        )
    return {generation: frames[stack] for generation, stack in number.items() if stack in frames}


def sum_by_device(rows: Columns, name: str) -> dict[str, int]:
    """Return a column's sum by device."""
    device = rows.texts("device")
    groups = Groups(device)
    return dict(zip(device.at(groups.first), groups.sum(rows.ints(name)).tolist(), strict=True))


def _is_within(values: Int, low: int, high: int) -> bool:
    return not len(values) or bool(int(values.min()) >= low and int(values.max()) < high)


class Lives(Struct, frozen=True, kw_only=True):
    """Rows of ``alloc`` from one source; ``end_ns`` is FOREVER if no free was recorded."""

    generation: Int
    address: Int
    bytes: Int
    begin_ns: Int
    end_ns: Int
    before_window: Bool
    known: Bool
    collective: Bool
    phase: npt.NDArray[np.object_]
    module: npt.NDArray[np.object_]
    operator: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.address)


class Claims(Struct, frozen=True, kw_only=True):
    """Rows of ``role``; ``tenant`` is a position in ``PRECEDENCE``."""

    generation: Int
    time_ns: Int
    tenant: Int
    sub: npt.NDArray[np.object_]
    gained: Bool
    backdated: Bool


def read_lives(alloc: Columns, source: str, device: str) -> Lives:
    """Return the rows of one source (``storage`` or ``profiler``) on one device, sorted by time."""
    is_own = alloc.texts("source").equals(source) & alloc.texts("device").equals(device)
    rows = alloc.at(is_own & (alloc.ints("bytes") > 0)).sort_by("allocated_ns")
    operator = rows.texts("operator")
    return Lives(
        generation=rows.ints("generation"),
        address=rows.ints("address"),
        bytes=rows.ints("bytes"),
        begin_ns=rows.ints("allocated_ns"),
        end_ns=rows.ints("freed_ns", FOREVER),
        before_window=rows.bools("before_window"),
        known=operator.known,
        collective=operator.match(lambda name: name.startswith(OPERATOR_PREFIXES)),
        phase=rows.texts("phase").to_objects(),
        module=rows.texts("module").to_objects(),
        operator=operator.to_objects(),
    )


def make_empty_lives() -> Lives:
    """Return no rows: a history has no storages."""
    numbers, flags = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    texts = np.empty(0, dtype=object)
    return Lives(
        generation=numbers,
        address=numbers,
        bytes=numbers,
        begin_ns=numbers,
        end_ns=numbers,
        before_window=flags,
        known=flags,
        collective=flags,
        phase=texts,
        module=texts,
        operator=texts,
    )


def read_claims(role: Columns) -> Claims:
    """Return the claims of the six tenants; tenants unknown to this version are left out."""
    codes: dict[str, int] = {tenant.value: code for tenant, code in TENANT_CODES.items()}
    rows = role.at(role.texts("tenant").equals(*codes))
    tenant = rows.texts("tenant")
    return Claims(
        generation=rows.ints("generation"),
        time_ns=rows.ints("time_ns"),
        tenant=np.array([*(codes.get(word, UNTAGGED) for word in tenant.words), UNTAGGED])[tenant.codes],
        sub=rows.texts("sub").to_objects(),
        gained=rows.bools("gained"),
        backdated=rows.bools("backdated"),
    )


class Timeline(Struct, frozen=True, kw_only=True):
    """A window with its steps and phases, sorted by time.

    ``unmarked`` is the phase before the first mark.
    """

    begin_ns: int
    end_ns: int
    steps: list[tuple[int, int]]
    step_ends: list[int]
    phases: list[tuple[int, str]]
    unmarked: str = Phase.OTHER.value

    def step_at(self, time_ns: int) -> int:
        """Return the running step, else the window's first step; -1 if no step was marked."""
        index = bisect.bisect_right(self.steps, time_ns, key=lambda step: step[0]) - 1
        return self.steps[max(index, 0)][1] if self.steps else -1

    def phase_at(self, time_ns: int) -> str:
        """Return the running phase."""
        index = bisect.bisect_right(self.phases, time_ns, key=lambda phase: phase[0]) - 1
        return self.phases[index][1] if index >= 0 else self.unmarked

    def find_last_optimizer_ns(self) -> int | None:
        """Return the start of the window's last optimizer phase; None if there was none."""
        inside = [t for t, name in self.phases if name == Phase.OPTIMIZER.value and t <= self.end_ns]
        return inside[-1] if inside else None


def read_timeline(mark: Columns, window: str = MEMORY) -> Timeline | None:
    """Return a rank's ``memory`` or ``init`` window; None if it is missing or ends before it starts.

    A phase unknown to this version counts as ``other``.
    """
    mark = mark.sort_by("time_ns")
    time_ns, kind, is_named = mark.ints("time_ns"), mark.texts("kind"), mark.texts("name").equals(window)
    begins = time_ns[is_named & kind.equals("window_begin")].tolist()
    ends = time_ns[is_named & kind.equals("window_end")].tolist()
    if not begins:
        return None
    begin_ns, end_ns = begins[0], ends[-1] if ends else int(time_ns.max())
    if end_ns < begin_ns:
        return None
    is_within = (time_ns >= begin_ns) & (time_ns <= end_ns)
    steps = mark.at(is_within & kind.equals("step_begin"))
    phases = mark.at(is_within & kind.equals("phase"))
    names = [name if name in _PHASES else Phase.OTHER.value for name in phases.texts("name")]
    return Timeline(
        begin_ns=begin_ns,
        end_ns=end_ns,
        steps=list(zip(steps.ints("time_ns").tolist(), steps.ints("number").tolist(), strict=True)),
        step_ends=time_ns[is_within & kind.equals("step_end")].tolist(),
        phases=list(zip(phases.ints("time_ns").tolist(), names, strict=True)),
        unmarked=INIT if window == INIT else Phase.OTHER.value,
    )


def find_annotated_step(mark: Columns, time_ns: int) -> int:
    """Return the running step; -1 if unknown."""
    known = {name: _parse_step(name) for name in _list_annotation_names(mark)}
    open_name = _find_innermost(mark, {name for name, step in known.items() if step is not None}, time_ns)
    step = None if open_name is None else known[open_name]
    return -1 if step is None else step


def find_annotated_phase(mark: Columns, time_ns: int) -> str:
    """Return the running phase; empty if unknown."""
    known = {name: _parse_phase(name) for name in _list_annotation_names(mark)}
    open_name = _find_innermost(mark, {name for name, phase in known.items() if phase}, time_ns)
    return "" if open_name is None else known[open_name]


class PhaseRange(Struct, frozen=True, kw_only=True):
    """A phase from ``begin_ns`` until before ``end_ns``."""

    begin_ns: int
    end_ns: int
    phase: str


def list_annotated_phases(mark: Columns) -> list[PhaseRange]:
    """Return the annotated phases by start; a phase without a recorded end lasts forever."""
    rows = mark.at(mark.texts("kind").equals(_BEGIN, _END)).sort_by("time_ns")
    phases = {name: _parse_phase(name) for name in _list_annotation_names(rows)}
    still_open: dict[str, list[int]] = {}
    ranges: list[PhaseRange] = []
    columns = (rows.ints("time_ns").tolist(), rows.texts("kind"), rows.texts("name"))
    for time_ns, kind, name in zip(*columns, strict=True):
        phase = phases[name]
        starts = still_open.setdefault(name, [])
        if phase and kind == _BEGIN:
            starts.append(time_ns)
        elif phase and starts:
            ranges.append(PhaseRange(begin_ns=starts.pop(), end_ns=time_ns, phase=phase))
    ranges += [
        PhaseRange(begin_ns=start, end_ns=FOREVER, phase=phases[name])
        for name, starts in still_open.items()
        for start in starts
    ]
    return sorted(ranges, key=lambda span: span.begin_ns)


def list_annotated_steps(mark: Columns) -> list[tuple[int, int]]:
    """Return start and number of the annotated steps, in order."""
    begins = mark.at(mark.texts("kind").equals(_BEGIN)).sort_by("time_ns")
    steps = zip(begins.ints("time_ns").tolist(), map(_parse_step, begins.texts("name")), strict=True)
    return [(time_ns, step) for time_ns, step in steps if step is not None]


def _list_annotation_names(mark: Columns) -> list[str]:
    return mark.texts("name").at(mark.texts("kind").equals(_BEGIN, _END)).list_distinct()


def _find_innermost(mark: Columns, names: set[str], time_ns: int) -> str | None:
    """Return the innermost range at a time: of the open ranges, the one that started last."""
    rows = mark.at(mark.texts("name").equals(*names) & (mark.ints("time_ns") <= time_ns))
    name, kind = rows.texts("name"), rows.texts("kind")
    is_begin, count = kind.equals(_BEGIN), len(name.words)
    begun, ended = (np.bincount(name.codes[kind.equals(each)], minlength=count) for each in (_BEGIN, _END))
    latest_ns = np.full(count, -1, dtype=np.int64)
    np.maximum.at(latest_ns, name.codes[is_begin], rows.ints("time_ns")[is_begin])
    still_open = np.flatnonzero(begun > ended)
    return name.words[still_open[np.argmax(latest_ns[still_open])]] if len(still_open) else None


def _parse_step(name: str) -> int | None:
    number = name.removeprefix(_STEP)
    digits = number != name and number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS
    return int(number) if digits else None


def _parse_phase(name: str) -> str:
    if name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER.value
    word = name.strip("# ").lower()
    return word if word in set(Phase) - {Phase.OTHER} else ""
