"""Ticks of the ruler: round milliseconds since the begin of the step."""

import math

from zprof.tui.timeline.view import View

#: Columns that a tick needs: its number, and room before the next.
_ROOM = 11
_STEPS = (1, 2, 5, 10)


def ticks(view: View, width: int) -> list[tuple[int, str]]:
    """Column and number of each tick."""
    if width < 1:
        return []
    step, decimals = _step(view.span_ns * _ROOM / width)
    found, time = [], -(-view.begin_ns // step) * step
    while time < view.end_ns:
        column = (time - view.begin_ns) * width // view.span_ns
        label = f"{time / 1e6:.{decimals}f}"
        if column + len(label) <= width:
            found.append((column, label))
        time += step
    return found


def ruled(view: View, width: int) -> str:
    """The ruler in one line: each number begins in the column of its time."""
    line = [" "] * width
    for column, label in ticks(view, width):
        line[column : column + len(label)] = label
    return "".join(line)


def _step(least_ns: float) -> tuple[int, int]:
    """The round number of nanoseconds from there on, and how many decimals of a millisecond it needs."""
    power = max(0, math.floor(math.log10(max(1.0, least_ns))))
    step = next(s * 10**power for s in _STEPS if s * 10**power >= least_ns or s == _STEPS[-1])
    return step, max(0, 6 - math.floor(math.log10(step)))
