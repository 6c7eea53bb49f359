"""Read the steps and phases of a memory window: from a recording's marks, or a snapshot's annotations.

Known annotations are ``ProfilerStep#7``, ``Optimizer.step#AdamW.step`` (torch writes both), and ranges named
exactly like a phase (``backward``, also ``## backward ##``). Other names are ignored.
"""

import bisect

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.tables import FOREVER
from zprof.model.training import Phase

MEMORY = "memory"
#: The window from the program's start to its first step; there, time outside all phases has the same name.
INIT = "init"
_PHASES = frozenset(Phase)
_BEGIN, _END = "annotation_begin", "annotation_end"
_STEP, _OPTIMIZER = "ProfilerStep#", "Optimizer.step#"
_MAX_DIGITS = 15


class Timeline(Struct, frozen=True, kw_only=True):
    """A window with its steps and phases; lists are sorted by time.

    ``unmarked`` is the phase before the first mark.
    """

    begin_ns: int
    end_ns: int
    steps: list[tuple[int, int]]
    step_ends: list[int]
    phases: list[tuple[int, str]]
    unmarked: str = Phase.OTHER.value

    def step_at(self, time_ns: int) -> int:
        """Return the step that was running, else the first one of the window; -1 if none was marked."""
        index = bisect.bisect_right(self.steps, time_ns, key=lambda step: step[0]) - 1
        return self.steps[max(index, 0)][1] if self.steps else -1

    def phase_at(self, time_ns: int) -> str:
        """Return the phase that was running."""
        index = bisect.bisect_right(self.phases, time_ns, key=lambda phase: phase[0]) - 1
        return self.phases[index][1] if index >= 0 else self.unmarked

    def find_last_optimizer_ns(self) -> int | None:
        """Return the start of the window's last optimizer phase; None if there was none."""
        inside = [t for t, name in self.phases if name == Phase.OPTIMIZER.value and t <= self.end_ns]
        return inside[-1] if inside else None


def read_timeline(mark: Columns, window: str = MEMORY) -> Timeline | None:
    """Return the ``memory`` or ``init`` window of a rank; None if it has none, or it ends before it starts.

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
    """Return the step that was running; -1 if it is unknown."""
    known = {name: _parse_step(name) for name in _list_annotation_names(mark)}
    open_name = _find_innermost(mark, {name for name, step in known.items() if step is not None}, time_ns)
    step = None if open_name is None else known[open_name]
    return -1 if step is None else step


def find_annotated_phase(mark: Columns, time_ns: int) -> str:
    """Return the phase that was running; empty if it is unknown."""
    known = {name: _parse_phase(name) for name in _list_annotation_names(mark)}
    open_name = _find_innermost(mark, {name for name, phase in known.items() if phase}, time_ns)
    return "" if open_name is None else known[open_name]


class PhaseRange(Struct, frozen=True, kw_only=True):
    """A phase from ``begin_ns`` until before ``end_ns``."""

    begin_ns: int
    end_ns: int
    phase: str


def list_annotated_phases(mark: Columns) -> list[PhaseRange]:
    """Return the annotated phases in order of their starts; one without an end does not end."""
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
    """Return start and number of each annotated step, in order."""
    begins = mark.at(mark.texts("kind").equals(_BEGIN)).sort_by("time_ns")
    steps = zip(begins.ints("time_ns").tolist(), map(_parse_step, begins.texts("name")), strict=True)
    return [(time_ns, step) for time_ns, step in steps if step is not None]


def _list_annotation_names(mark: Columns) -> list[str]:
    return mark.texts("name").at(mark.texts("kind").equals(_BEGIN, _END)).list_distinct()


def _find_innermost(mark: Columns, names: set[str], time_ns: int) -> str | None:
    """Return the range that started last among those open at a time."""
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
