"""What sharding moves in a step: gathers and reductions, with their time, what of it shows, and latency.

Of each rank the group counts that moves most bytes by all_gather, else by reduce_scatter, else by
all_reduce: the one that the states, or the replicas, are spread over.  Means are over ranks and steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.transfer.texts import codes_of
from zprof.model.collectives import CollectiveKind
from zprof.rules.rows import clock_uncertainty_ns, mean_per_step, of_kind
from zprof.rules.transfer.messages.pipeline import Pass

_GATHERS = (CollectiveKind.ALL_GATHER,)
_REDUCES = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
#: A message of so small a share of the others is all latency.
_TINY_RATIO = 1 / 64
#: Of the bytes of a kind: below it messages (a norm, a flag, the loss) do not count as its traffic.
_COUNTS_RATIO = 1 / 1024
#: A fit that misses the median message by more says nothing of the latency.
_FIT_RESIDUAL_RATIO = 0.2
_FIT_MESSAGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of one kind.  ``count``, ``exposed_ns`` and ``launch_ns`` are of a step, the rest medians.

    ``exposed_ns``: exposed transfer.  ``launch_ns``: what the main thread of a CPU rank spends on launching
    them.  ``latency_ns``: of a message without bytes; None where the run does not tell it.
    """

    kind: CollectiveKind
    count: float
    bytes: float
    each_ns: float
    exposed_ns: float
    launch_ns: float
    latency_ns: float | None
    rows: pd.DataFrame

    def sized(self, times: float) -> float:
        """Time of a message of so many times the bytes; without a known latency all of it is bytes."""
        latency = self.latency_ns or 0.0
        return latency + times * (self.each_ns - latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Gathers and reductions of a step.

    ``before``: gathers serve the passes; else there are none, or they follow the update.
    """

    gathers: Messages | None
    reduces: Messages | None
    compute_ns: float
    before: bool

    @property
    def both(self) -> tuple[Messages, ...]:
        """Those that there are."""
        return tuple(messages for messages in (self.gathers, self.reduces) if messages)

    @property
    def exposed_ns(self) -> float:
        """Exposed transfer of a step."""
        return sum(messages.exposed_ns for messages in self.both)

    @property
    def launch_ns(self) -> float:
        """What launching costs the main thread of a CPU rank in a step."""
        return sum(messages.launch_ns for messages in self.both)

    @property
    def latency_ratio(self) -> float | None:
        """Share of the messages' time that is latency; None where it is not known of all."""
        known = [messages for messages in self.both if messages.latency_ns is not None]
        if len(known) < len(self.both):
            return None
        whole = sum(messages.count * messages.each_ns for messages in known)
        return sum(messages.count * (messages.latency_ns or 0.0) for messages in known) / whole

    def resized(self, times: float) -> list[Pass]:
        """The passes of a step if each unit, or bucket, were so many times as large."""
        gather = self.gathers.sized(times) if self.gathers else 0.0
        reduce = self.reduces.sized(times) if self.reduces else 0.0
        gathers = _count(self.gathers, times) if self.before else 0
        reduces = _count(self.reduces, times)
        forward, again = _split(gathers, reduces)
        turns = again and _count(self.gathers, 1) >= 2 * _count(self.reduces, 1)
        each = self.compute_ns / (forward + 2 * max(1, reduces))
        passes = [Pass(compute_ns=each, gather_ns=gather if gathers else 0.0) for _ in range(forward)]
        passes += [
            Pass(
                compute_ns=2 * each,
                gather_ns=gather if again else 0.0,
                reduce_ns=reduce,
                turns=turns and number == 0,
            )
            for number in range(reduces)
        ]
        return passes

    @property
    def keeps_units(self) -> bool:
        """Whether units stay gathered from their forward to their backward."""
        if self.gathers is None or self.reduces is None or not self.before:
            return False
        return not _split(_count(self.gathers, 1), _count(self.reduces, 1))[1]

    def gathering_again(self) -> "Traffic":
        """The same, with units that are gathered for their backward too."""
        if self.gathers is None or not self.keeps_units:
            return self
        return replace(self, gathers=replace(self.gathers, count=2 * self.gathers.count))

    def after_ns(self, times: float) -> float:
        """Gathers of new parameters, which follow the update: nothing hides them."""
        if self.before or self.gathers is None:
            return 0.0
        return _count(self.gathers, times) * self.gathers.sized(times)


def _count(messages: Messages | None, times: float) -> int:
    return max(1, round(messages.count / times)) if messages else 0


def _split(gathers: int, reduces: int) -> tuple[int, bool]:
    """How many passes are forward ones, and whether the backward gathers again."""
    again = gathers >= 1.5 * reduces
    forward = gathers - reduces if again and reduces else gathers
    return max(1, forward), again and bool(reduces)


def traffic_of(analysis: RunAnalysis) -> Traffic | None:
    """The traffic of a run; None where it has none."""
    rows = _of_sharding(analysis.collectives)
    gathers, reduces = (_messages(analysis, rows, kinds) for kinds in (_GATHERS, _REDUCES))
    if gathers is None and reduces is None:
        return None
    compute = float(analysis.steps["compute_ns"].mean()) if len(analysis.steps) else 0.0
    before = gathers is not None and (reduces is None or _first(gathers) < _first(reduces))
    return Traffic(gathers=gathers, reduces=reduces, compute_ns=compute, before=before)


def _first(messages: Messages) -> float:
    """When the first of a step is launched: the median over ranks and steps, to compare kinds by."""
    rows = messages.rows
    starts = rows["launch_start_ns"].fillna(rows["start_ns"]).astype("float64")
    return float(starts.groupby([rows["rank"], rows["step"]]).min().median())


def _of_sharding(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the group of each rank that shares most bytes."""
    rows = rows[rows["group_size"] > 1]
    group = _numbered(rows["group"])
    for kinds in (_GATHERS, _REDUCES[:1], _REDUCES[1:]):
        mine = _of_kinds(rows, kinds)
        if len(mine) and mine["bytes"].sum() > 0:
            moved = mine["bytes"].groupby([mine["rank"], group.loc[mine.index]]).sum()
            most = moved.groupby(level="rank").idxmax()
            keys = pd.MultiIndex.from_tuples(list(most))
            return rows[pd.MultiIndex.from_arrays([rows["rank"], group]).isin(keys)]
    return rows.iloc[:0]


def _numbered(groups: "pd.Series[str]") -> "pd.Series[int]":
    """Groups by the order of their names, which are long where ranks are many."""
    codes, texts = codes_of(groups)
    places = np.argsort(np.argsort(np.array(texts, dtype=object))) if texts else codes
    return pd.Series(places[codes], index=groups.index)


def _of_kinds(rows: pd.DataFrame, kinds: Iterable[CollectiveKind]) -> pd.DataFrame:
    return rows[rows["kind"].astype(str).isin([kind.value for kind in kinds])]


def _messages(
    analysis: RunAnalysis, rows: pd.DataFrame, kinds: tuple[CollectiveKind, ...]
) -> Messages | None:
    """Those of the kind of ``kinds`` that moves most."""
    mine = _of_kinds(rows, kinds)
    mine = mine[mine["bytes"] > _COUNTS_RATIO * mine["bytes"].max()]
    if mine.empty:
        return None
    kind = CollectiveKind(str(mine.groupby(mine["kind"].astype(str))["bytes"].sum().idxmax()))
    mine = of_kind(mine, kind)
    times = intrinsic(analysis, mine)
    if not len(times):
        return None
    each = float(times.median())
    latency = _latency(analysis, mine, kind)
    return Messages(
        kind=kind,
        count=mean_per_step(analysis, len(mine)),
        bytes=float(mine["bytes"].median()),
        each_ns=each,
        exposed_ns=mean_per_step(analysis, mine["exposed_transfer_ns"].sum()),
        launch_ns=_launch_ns(analysis, mine),
        latency_ns=min(latency, each) if latency is not None else None,
        rows=mine,
    )


def intrinsic(analysis: RunAnalysis, rows: pd.DataFrame) -> "pd.Series[float]":
    """Last start to first end of each collective that all ranks of the group were seen in."""
    rows = rows[rows["matched"].astype(bool) & ~rows["first_of_window"].astype(bool)]
    each = rows.groupby("instance").agg(start=("start_ns", "max"), end=("end_ns", "min"))
    times = (each["end"] - each["start"]).astype("float64")
    return times[times > max(1, 2 * clock_uncertainty_ns(analysis))]


def _latency(analysis: RunAnalysis, mine: pd.DataFrame, kind: CollectiveKind) -> float | None:
    """Of a message without bytes: from the fit over sizes, else what tiny ones between the same ranks take.

    Groups of the same ranks use the same links: a norm or a loss often has a group of its own.
    """
    ranks = {_ranks_of(str(group)) for group in mine["group"].unique()}
    fits = [
        fit.latency_ns
        for fit in analysis.time.fits
        if (fit.kind, _ranks_of(fit.group) in ranks) == (kind.value, True)
        and fit.residual_ratio <= _FIT_RESIDUAL_RATIO
        and fit.messages >= _FIT_MESSAGES
    ]
    if fits:
        return float(max(fits))
    rows = _of_kinds(analysis.collectives, (*_GATHERS, *_REDUCES))
    rows = rows[rows["bytes"] <= _TINY_RATIO * mine["bytes"].median()]
    same = {group: _ranks_of(str(group)) in ranks for group in rows["group"].unique()}
    times = intrinsic(analysis, rows[rows["group"].map(same).astype(bool)])
    return float(times.median()) if len(times) else None


def _ranks_of(group: str) -> str:
    """The ranks of a group: behind them may stand what tells it from others of the same ranks."""
    return group.split("#", 1)[0]


def _launch_ns(analysis: RunAnalysis, rows: pd.DataFrame) -> float:
    """What launching them costs the thread that computes, a step: nothing beside a device."""
    if analysis.run.device != "cpu":
        return 0.0
    launch = (rows["launch_end_ns"] - rows["launch_start_ns"]).dropna()
    return mean_per_step(analysis, launch.clip(lower=0).sum())
