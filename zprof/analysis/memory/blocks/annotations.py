"""The step and the phase at an instant of a snapshot, from the ranges that its program named.

Known names are ``ProfilerStep#7``, ``Optimizer.step#AdamW.step`` (torch writes both), and ranges that are
called exactly as a phase (``backward``, also ``## backward ##``).  Any other name tells nothing.
"""

import pandas as pd

from zprof.model.phases import Phase

_BEGIN, _END = "annotation_begin", "annotation_end"
_STEP, _OPTIMIZER = "ProfilerStep#", "Optimizer.step#"
_LONGEST_NUMBER = 15


def step_at(mark: pd.DataFrame, time_ns: int) -> int:
    """The step that was under way; -1 where no range says it."""
    known = {name: _step(name) for name in _names(mark)}
    open_name = _innermost(mark, {name for name, step in known.items() if step is not None}, time_ns)
    step = None if open_name is None else known[open_name]
    return -1 if step is None else step


def phase_at(mark: pd.DataFrame, time_ns: int) -> str:
    """The phase that was under way; empty where no range says it."""
    known = {name: _phase(name) for name in _names(mark)}
    open_name = _innermost(mark, {name for name, phase in known.items() if phase}, time_ns)
    return "" if open_name is None else known[open_name]


def _names(mark: pd.DataFrame) -> list[str]:
    return [str(name) for name in mark.loc[mark["kind"].isin([_BEGIN, _END]), "name"].unique()]


def _innermost(mark: pd.DataFrame, names: set[str], time_ns: int) -> str | None:
    """Of the ranges that are open then, the one that began last."""
    rows = mark[mark["name"].isin(names) & (mark["time_ns"] <= time_ns)]
    begun, ended = (
        rows[rows["kind"] == kind].groupby("name", observed=True)["time_ns"] for kind in (_BEGIN, _END)
    )
    still_open = begun.count().sub(ended.count(), fill_value=0) > 0
    latest = begun.max()[still_open[still_open].index]
    return None if latest.empty else str(latest.idxmax())


def _step(name: str) -> int | None:
    number = name.removeprefix(_STEP)
    digits = number != name and number.isascii() and number.isdigit() and len(number) <= _LONGEST_NUMBER
    return int(number) if digits else None


def _phase(name: str) -> str:
    if name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER.value
    word = name.strip("# ").lower()
    return word if word in set(Phase) - {Phase.OTHER} else ""
