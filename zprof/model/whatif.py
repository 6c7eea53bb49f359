"""Predictions: what one change would do to a measured run, and the assumptions that they rest on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zprof.model.gaps import Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What a predicted figure rests on: its formula in words and symbols, and where that comes from.

    ``deviation``: where it is not what the paper says, and why; empty where it is.
    """

    formula: str
    source: str
    deviation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is changed; None: as it was.

    ``bandwidth_ratio``, ``latency_ratio``: times what the link had.  ``prefetch``: units gathered ahead
    in both passes.  ``keep_after_forward``: ``none``, ``last`` or ``all`` units stay gathered.
    ``even``: every rank computes as fast as the median one.  ``shard_ranks``: over so many ranks.
    """

    stage: int | None = None
    prefetch: int | None = None
    keep_after_forward: str | None = None
    overlap_reduce: bool | None = None
    overlap_gather: bool | None = None
    bandwidth_ratio: float | None = None
    latency_ratio: float | None = None
    units_merged: int | None = None
    micro_batches: int | None = None
    element_bytes_reduced: int | None = None
    even: bool | None = None
    shard_ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedFigure:
    """One figure: measured in the run, by the model of the same run, and predicted for the changed one.

    ``error_ratio``: modelled / measured - 1, on the run that it was fitted to; None where that has no
    meaning.  ``low``, ``high``: the range of the prediction.  The unit is that of the name: ``_ns`` or
    ``_bytes``.
    """

    name: str
    measured: int | None
    modelled: int | None
    predicted: int | None
    low: int | None
    high: int | None
    error_ratio: float | None
    assumption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLink:
    """Alpha and beta of one kind of collective in one group, and what they rest on."""

    kind: str
    group: str
    latency_ns: int
    busbw_bytes_per_s: float | None
    messages: int
    residual_ratio: float
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the model of a run took from it."""

    units: int
    passes: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    links: tuple[FittedLink, ...]
    slowest_rank: int | None
    skew_ns: int
    prefetch: int | None
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The changed run: its step by terms of the ledger (mean over ranks), its peak by tenant (largest rank).

    ``step`` has ``wall_ns`` and the terms, ``memory`` ``peak_bytes`` and the tenants; each is empty where it
    is not predicted.  ``saving_ns``: of a step, lowest and highest, negative where it gets longer.
    """

    change: Change
    words: str
    step: tuple[PredictedFigure, ...] = ()
    memory: tuple[PredictedFigure, ...] = ()
    saving_ns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What single changes would make of a run, and what the model of it rests on.

    ``assumptions``: by the keys that predicted figures name.  ``calibration`` is None where the time of the
    run could not be modelled; ``gaps`` say why.
    """

    predictions: tuple[Prediction, ...] = ()
    calibration: Calibration | None = None
    assumptions: Mapping[str, Assumption] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
