"""Define predictions: the effect of a change on a measured run, and its assumptions."""

from collections.abc import Mapping

from msgspec import Struct, field

from zprof.model.gaps import Gap


class Assumption(Struct, frozen=True, kw_only=True):
    """Formula of a predicted figure, in words and symbols, with its source.

    ``deviation``: how and why it differs from the paper; empty if it does not differ.
    """

    formula: str
    source: str
    deviation: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """A change to a run; None keeps a setting.

    ``bandwidth_ratio``, ``latency_ratio``: factor on the measured link. ``prefetch``: units gathered ahead in
    both passes. ``keep_after_forward``: ``none``, ``last`` or ``all`` units stay gathered. ``even``: every
    rank computes as fast as the median one. ``shard_ranks``: number of ranks to shard over.
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


class PredictedFigure(Struct, frozen=True, kw_only=True):
    """One figure: measured in the run, modelled for the same run, and predicted for the changed one.

    ``error_ratio``: modelled / measured - 1, on the run that the model was fitted to; None if it is not
    meaningful. ``low``, ``high``: range of the prediction. The unit is the suffix of the name: ``_ns`` or
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


class FittedLink(Struct, frozen=True, kw_only=True):
    """Latency (alpha) and bandwidth (beta) of one kind of collective in one group."""

    kind: str
    group: str
    latency_ns: int
    busbw_bytes_per_s: float | None
    messages: int
    residual_ratio: float
    how: str


class Calibration(Struct, frozen=True, kw_only=True):
    """Parameters of the model that were fitted to a run."""

    units: int
    micro_batches: int
    passes: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    links: tuple[FittedLink, ...]
    slowest_rank: int | None
    skew_ns: int
    prefetch: int | None
    steps: int


class Prediction(Struct, frozen=True, kw_only=True):
    """The changed run: its step by ledger term (mean over ranks), its peak by tenant (largest rank).

    ``step`` holds ``wall_ns`` and the terms, ``memory`` holds ``peak_bytes`` and the tenants; each is empty
    if it is not predicted. ``saving_ns``: lowest and highest saving per step, negative if the step gets
    longer.
    """

    change: Change
    words: str
    step: tuple[PredictedFigure, ...] = ()
    memory: tuple[PredictedFigure, ...] = ()
    saving_ns: tuple[int, int] | None = None


class Outlook(Struct, frozen=True, kw_only=True):
    """Predicted effect of single changes to a run, and the calibration of the model.

    ``assumptions``: by the keys in predicted figures. ``calibration`` is None if the time of the run could
    not be modelled; ``gaps`` have the reasons. ``is_window``: the times are those of one interval, because
    the run has no step marks.
    """

    predictions: tuple[Prediction, ...] = ()
    calibration: Calibration | None = None
    assumptions: Mapping[str, Assumption] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    is_window: bool = False

    @property
    def period(self) -> str:
        """What the times are of."""
        return "window" if self.is_window else "step"
