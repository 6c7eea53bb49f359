"""Steps over ranks: the shortest, the middle and the longest of each, and bars of their heights."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from zprof.run.live import LiveRank

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "12345678"
#: The middle of what is shown is half as high as the highest bar: what is slow by chance at first is cut.
_TOP = 2.0
#: What stands under a step, by its window.
_LETTERS = {"": ".", "memory": "m", "time": "t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """A step as its ranks saw it; ``longest`` is the rank that took ``most_ns``."""

    step: int
    window: str
    ranks: int
    least_ns: int
    median_ns: float
    most_ns: int
    longest: int


def spreads(ranks: Sequence[LiveRank], most: int) -> list[StepSpread]:
    """The last steps that any rank has finished, in order."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    windows: dict[int, str] = {}
    for rank in ranks:
        for step in rank.steps[-most:]:
            found[step.step].append((step.wall_ns, rank.rank))
            windows[step.step] = step.window
    return (
        [_spread(step, windows[step], sorted(found[step])) for step in sorted(found)[-most:]] if most else []
    )


def _spread(step: int, window: str, walls: Sequence[tuple[int, int]]) -> StepSpread:
    return StepSpread(
        step=step,
        window=window,
        ranks=len(walls),
        least_ns=walls[0][0],
        median_ns=median(wall for wall, _ in walls),
        most_ns=walls[-1][0],
        longest=walls[-1][1],
    )


def top_of(values: Sequence[float]) -> float:
    """What the highest bar stands for."""
    return _TOP * median(values) if values else 0.0


def bars(values: Sequence[float], top: float, *, ascii_only: bool) -> str:
    """A bar a value; what is above ``top`` is as high as it."""
    marks = _ASCII_BARS if ascii_only else _BARS
    if top <= 0:
        return marks[0] * len(values)
    return "".join(marks[min(len(marks) - 1, int(value / top * len(marks)))] for value in values)


def letters(steps: Sequence[StepSpread]) -> str:
    """The window of each step, as a letter."""
    return "".join(_LETTERS.get(step.window, "?") for step in steps)
