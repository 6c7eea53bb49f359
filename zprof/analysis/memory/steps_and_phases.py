"""Read the steps and phases of a memory window: from a recording's marks, or a snapshot's annotations.

Known annotations are ``ProfilerStep#7``, ``Optimizer.step#AdamW.step`` (torch writes both), and ranges named
exactly like a phase (``backward``, also ``## backward ##``). Other names are ignored.
"""

import bisect

import pandas as pd
from msgspec import Struct

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


def read_timeline(mark: pd.DataFrame, window: str = MEMORY) -> Timeline | None:
    """Return the ``memory`` or ``init`` window of a rank; None if it has none, or it ends before it starts.

    A phase unknown to this version counts as ``other``.
    """
    mark = mark.sort_values("time_ns", kind="stable")
    named = mark[mark["name"] == window]
    begins = named.loc[named["kind"] == "window_begin", "time_ns"].tolist()
    ends = named.loc[named["kind"] == "window_end", "time_ns"].tolist()
    if not begins:
        return None
    begin_ns, end_ns = begins[0], ends[-1] if ends else int(mark["time_ns"].max())
    if end_ns < begin_ns:
        return None
    within = mark[(mark["time_ns"] >= begin_ns) & (mark["time_ns"] <= end_ns)]
    steps = within[within["kind"] == "step_begin"]
    phases = within[within["kind"] == "phase"]
    names = [name if name in _PHASES else Phase.OTHER.value for name in phases["name"].astype(str)]
    return Timeline(
        begin_ns=begin_ns,
        end_ns=end_ns,
        steps=list(zip(steps["time_ns"].tolist(), steps["number"].tolist(), strict=True)),
        step_ends=within.loc[within["kind"] == "step_end", "time_ns"].tolist(),
        phases=list(zip(phases["time_ns"].tolist(), names, strict=True)),
        unmarked=INIT if window == INIT else Phase.OTHER.value,
    )


def find_annotated_step(mark: pd.DataFrame, time_ns: int) -> int:
    """Return the step that was running; -1 if it is unknown."""
    known = {name: _parse_step(name) for name in _list_annotation_names(mark)}
    open_name = _find_innermost(mark, {name for name, step in known.items() if step is not None}, time_ns)
    step = None if open_name is None else known[open_name]
    return -1 if step is None else step


def find_annotated_phase(mark: pd.DataFrame, time_ns: int) -> str:
    """Return the phase that was running; empty if it is unknown."""
    known = {name: _parse_phase(name) for name in _list_annotation_names(mark)}
    open_name = _find_innermost(mark, {name for name, phase in known.items() if phase}, time_ns)
    return "" if open_name is None else known[open_name]


class PhaseRange(Struct, frozen=True, kw_only=True):
    """A phase from ``begin_ns`` until before ``end_ns``."""

    begin_ns: int
    end_ns: int
    phase: str


def list_annotated_phases(mark: pd.DataFrame) -> list[PhaseRange]:
    """Return the annotated phases in order of their starts; one without an end does not end."""
    rows = mark[mark["kind"].isin([_BEGIN, _END])].sort_values("time_ns", kind="stable")
    phases = {name: _parse_phase(name) for name in _list_annotation_names(rows)}
    still_open: dict[str, list[int]] = {}
    ranges: list[PhaseRange] = []
    for time_ns, kind, name in zip(rows["time_ns"], rows["kind"], rows["name"], strict=True):
        phase = phases[str(name)]
        starts = still_open.setdefault(str(name), [])
        if phase and kind == _BEGIN:
            starts.append(int(time_ns))
        elif phase and starts:
            ranges.append(PhaseRange(begin_ns=starts.pop(), end_ns=int(time_ns), phase=phase))
    ranges += [
        PhaseRange(begin_ns=start, end_ns=FOREVER, phase=phases[name])
        for name, starts in still_open.items()
        for start in starts
    ]
    return sorted(ranges, key=lambda span: span.begin_ns)


def list_annotated_steps(mark: pd.DataFrame) -> list[tuple[int, int]]:
    """Return start and number of each annotated step, in order."""
    begins = mark[mark["kind"] == _BEGIN].sort_values("time_ns", kind="stable")
    steps = (
        (int(t), _parse_step(str(name))) for t, name in zip(begins["time_ns"], begins["name"], strict=True)
    )
    return [(time_ns, step) for time_ns, step in steps if step is not None]


def _list_annotation_names(mark: pd.DataFrame) -> list[str]:
    return [str(name) for name in mark.loc[mark["kind"].isin([_BEGIN, _END]), "name"].unique()]


def _find_innermost(mark: pd.DataFrame, names: set[str], time_ns: int) -> str | None:
    """Return the range that started last among those open at a time."""
    rows = mark[mark["name"].isin(names) & (mark["time_ns"] <= time_ns)]
    starts, ends = (
        rows[rows["kind"] == kind].groupby("name", observed=True)["time_ns"] for kind in (_BEGIN, _END)
    )
    still_open = starts.count().sub(ends.count(), fill_value=0) > 0
    latest = starts.max()[still_open[still_open].index]
    return None if latest.empty else str(latest.idxmax())


def _parse_step(name: str) -> int | None:
    number = name.removeprefix(_STEP)
    digits = number != name and number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS
    return int(number) if digits else None


def _parse_phase(name: str) -> str:
    if name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER.value
    word = name.strip("# ").lower()
    return word if word in set(Phase) - {Phase.OTHER} else ""
