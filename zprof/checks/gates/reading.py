"""Define what a gate reads from a run and its baseline, and compare it with a limit in exact arithmetic.

    allowed = baseline * (1 + change ratio)    or    baseline + change points    or    an absolute value

A limit is a decimal number as written: 0.29 is 29/100, so 129 passes against 100 and +29 %. A value equal to
the allowed one passes. A bound decides only if the true value cannot change the decision.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from msgspec import Struct

from zprof.analysis.compare.intervals import Samples
from zprof.model.baseline import Baseline, MemoryBaseline, TimeBaseline
from zprof.model.check import Limit, Sense
from zprof.model.report import Report

#: Minimum number of steps per run for an interval of their mean.
MIN_STEPS = 5
#: Minimum number of steps per run for a range; a single step does not show how much steps vary.
MIN_STEPS_OF_RANGE = 2


class GateFigure(Struct, frozen=True, kw_only=True):
    """A value; the flags tell if the true value can be lower or higher."""

    value: Fraction
    can_be_lower: bool = False
    can_be_higher: bool = False

    @property
    def is_bound(self) -> bool:
        """True if the value is only a bound."""
        return self.can_be_lower or self.can_be_higher


def to_fraction(value: float) -> Fraction:
    """Convert a number to the exact fraction of its shortest decimal representation."""
    return Fraction(str(value))


def is_relative(limit: Limit) -> bool:
    """Return True if the limit needs a baseline."""
    return limit.value is None


def compute_allowed(limit: Limit, baseline: GateFigure | None) -> GateFigure:
    """Return the value that the limit allows; a relative limit needs ``baseline``.

    Raises:
        ValueError: The limit is relative and there is no baseline.
    """
    if limit.value is not None:
        return GateFigure(value=to_fraction(limit.value))
    if baseline is None:
        raise ValueError(f"{limit.gate}: a relative limit without a baseline")
    if limit.change_points is not None:
        value = baseline.value + to_fraction(limit.change_points)
    else:
        value = baseline.value * (1 + to_fraction(limit.change_ratio or 0.0))
    return GateFigure(value=value, can_be_lower=baseline.can_be_lower, can_be_higher=baseline.can_be_higher)


def is_within_limit(current: GateFigure, allowed: GateFigure, sense: Sense) -> bool | None:
    """Return True if ``current`` is within the limit, None if a bound leaves it undecided."""
    return decide_with_bounds(is_beyond(current, allowed, sense), current, allowed, sense)


def is_beyond(current: GateFigure, allowed: GateFigure, sense: Sense) -> bool:
    """Return True if the measured value is beyond the limit, ignoring uncertainty."""
    return current.value > allowed.value if sense is Sense.AT_MOST else current.value < allowed.value


def decide_with_bounds(beyond: bool, current: GateFigure, allowed: GateFigure, sense: Sense) -> bool | None:
    """Return ``not beyond``, or None if the true values could lead to a different decision."""
    is_above = beyond == (sense is Sense.AT_MOST)
    is_uncertain = current.can_be_lower or allowed.can_be_higher
    if not is_above:
        is_uncertain = current.can_be_higher or allowed.can_be_lower
    return None if is_uncertain else not beyond


def is_within_limit_with_confidence(
    interval: tuple[float, float], current: GateFigure, baseline: Fraction, allowed: GateFigure, sense: Sense
) -> bool | None:
    """Like ``is_within_limit`` for samples, which are beyond the limit only if the entire interval is."""
    low, high = interval
    allowed_change = float(allowed.value - baseline)
    return decide_with_bounds(
        low > allowed_change if sense is Sense.AT_MOST else high < allowed_change, current, allowed, sense
    )


_MAX_RANKS = 4
_RunBaseline = MemoryBaseline | TimeBaseline


class GateInput(Struct, frozen=True, kw_only=True):
    """A limit, the run to judge, and the baseline.

    ``current`` is the run as a baseline, so that the same code reads both.
    """

    limit: Limit
    report: Report
    current: Baseline
    baseline: Baseline | None


class Reading(Struct, frozen=True, kw_only=True):
    """The figures of a run and its baseline, None if unknown; ``missing`` is the reason, with a ``remedy``.

    ``samples``: one value per step of the run and of the baseline, for a limit with a confidence.
    ``value_note``: follows the value in the sentence. ``warn_reason``: why exceeding the limit only warns.
    ``has_different_parts``: the value is a sum over different collectives from the baseline's, so the gate
    warns even within the limit; ``growth_note`` names them. ``stable``: both figures without the part that
    differs from run to run by chance, which ``chance_note`` names; a relative limit that they keep is not
    broken. ``has_nothing``: the run was measured and has nothing of the kind, such as a single rank without
    collectives. ``device_note``: why a gate cannot decide on this device.
    """

    current: GateFigure | None = None
    baseline: GateFigure | None = None
    missing: str = ""
    remedy: str = ""
    report_path: str = ""
    subject: str = ""
    value_note: str = ""
    growth_note: str = ""
    samples: tuple[Samples | None, Samples | None] = (None, None)
    warn_reason: str = ""
    has_different_parts: bool = False
    stable: tuple[GateFigure, GateFigure] | None = None
    chance_note: str = ""
    has_nothing: bool = False
    device_note: str = ""


def list_newly_missing_ranks(current: Iterable[int], baseline: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the ranks that are missing in ``current`` but not in ``baseline``, in ascending order."""
    return tuple(sorted(set(current) - set(baseline)))


def list_missing_ranks(
    gate_input: GateInput, current: _RunBaseline, baseline: _RunBaseline | None
) -> tuple[int, ...]:
    """Return the ranks that the run should have but does not.

    For an absolute limit these are all missing ranks, for a relative one only those that the baseline has:
    ranks missing from both do not affect the comparison.
    """
    excused = baseline.missing_ranks if baseline is not None and is_relative(gate_input.limit) else ()
    return list_newly_missing_ranks(current.missing_ranks, excused)


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as ``rank 1``, ``ranks 1, 2`` or ``ranks 1, 2, 3, 4 and 120 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else ""
    return f"ranks {', '.join(map(str, ranks[:_MAX_RANKS]))}{more}"
