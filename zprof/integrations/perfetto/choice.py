"""What of a run is written: which ranks, which steps, and from when to when."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Intervals, clip, union
from zprof.analysis.time.activity.steps import StepWindows
from zprof.analysis.time.tracks import RankTracks
from zprof.model.errors import BadInput, MissingData


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``steps`` and ``ranks``: None for all.  ``python``: also the frames of Python functions."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    python: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWindow:
    """One chosen rank: its chosen steps, and the stretch of it that is written, on the common clock."""

    tracks: RankTracks
    steps: StepWindows
    begin_ns: int
    end_ns: int

    def cut(self, spans: Intervals) -> Intervals:
        """What of ``spans`` is written; touching rows become one."""
        return clip(spans, self.begin_ns, self.end_ns)


def windows(tracks: Sequence[RankTracks], choice: Choice) -> list[RankWindow]:
    """The chosen ranks, by number.

    Raises:
        BadInput: a rank or a step that was not timed is asked for.
        MissingData: no rank was timed.
    """
    if not tracks:
        raise MissingData("no step of this run was timed", hint="record with a time window")
    have = {entry.rank for entry in tracks}
    if choice.ranks is not None and (absent := choice.ranks - have):
        raise BadInput(f"no times of rank {_listed(absent)}", hint=f"timed ranks: {_listed(have)}")
    numbers = {int(number) for entry in tracks for number in entry.steps.number}
    if choice.steps is not None and (absent := choice.steps - numbers):
        raise BadInput(f"step {_listed(absent)} was not timed", hint=f"timed steps: {_listed(numbers)}")
    chosen = [entry for entry in tracks if choice.ranks is None or entry.rank in choice.ranks]
    found = [_window(entry, choice.steps) for entry in sorted(chosen, key=lambda entry: entry.rank)]
    return [window for window in found if window is not None]


def _window(tracks: RankTracks, steps: frozenset[int] | None) -> RankWindow | None:
    """None where this rank has none of the steps."""
    kept = _kept(tracks.steps, steps)
    held = kept.spans if steps is not None else union(tracks.coverage, tracks.steps.spans)
    if not len(held):
        return None
    return RankWindow(tracks=tracks, steps=kept, begin_ns=int(held[:, 0].min()), end_ns=int(held[:, 1].max()))


def _kept(steps: StepWindows, wanted: frozenset[int] | None) -> StepWindows:
    if wanted is None:
        return steps
    keep = np.isin(steps.number, sorted(wanted))
    return StepWindows(number=steps.number[keep], begin_ns=steps.begin_ns[keep], end_ns=steps.end_ns[keep])


def _listed(numbers: set[int] | frozenset[int]) -> str:
    """``0, 1, 2``, cut where there are many."""
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:8])) + (f", ... {ordered[-1]}" if len(ordered) > 8 else "")
