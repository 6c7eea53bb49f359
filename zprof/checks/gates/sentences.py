"""Write the sentence of a gate: the measured value, the baseline, the allowed value, and what grew.

peak_memory: 21.4 MiB on rank 1 is 4.2 % above the baseline's 20.5 MiB, allowed +2% (20.9 MiB); …
"""

from zprof.checks.gates.reading import GateFigure, Reading, is_relative
from zprof.model.check import GateResult, Limit, Outcome, Sense
from zprof.model.formatting import format_percent, printable, shorten
from zprof.model.quantities import Unit, format_number, format_signed

#: Smaller changes would be displayed as 0.0 %.
_MIN_DISPLAYED_RATIO = 0.0005
_MAX_NAME_COLUMNS = 60


def clean_name(text: object) -> str:
    """Make a name from a run or a file printable on one line, shortened."""
    return shorten(printable(text), _MAX_NAME_COLUMNS)


def format_points(change: float) -> str:
    """Format a difference of two ratios in percentage points."""
    return f"{change * 100:.1f} points" if change >= _MIN_DISPLAYED_RATIO else "less than 0.1 points"


def describe_unjudged(result: GateResult, reading: Reading, reason: str) -> str:
    """Describe a limit that was not judged, with the reason."""
    value = (
        ""
        if result.value is None
        else f"{format_number(result.value, result.limit.unit)}{reading.value_note}, "
    )
    status = "unknown" if result.outcome is Outcome.UNKNOWN else "not judged"
    return f"{result.limit.gate}: {value}{status}: {reason}"


def describe_result(
    result: GateResult,
    reading: Reading,
    allowed: GateFigure,
    *,
    within_limit: bool | None,
    interval: tuple[float, float] | None,
    is_range: bool,
) -> str:
    """Describe the result of a limit that was judged; ``is_range``: the interval is that of a few steps."""
    limit, unit = result.limit, result.limit.unit
    value = result.value or 0.0
    parts = [f"{limit.gate}: {format_number(value, unit)}{reading.value_note}{_describe_baseline(result)}"]
    parts.append(f", {_describe_allowed(limit, float(allowed.value))}")
    parts.append(_describe_excess(unit, value, float(allowed.value), within_limit=within_limit))
    if interval is not None:
        parts.append(_describe_interval(limit, interval, is_range=is_range))
    if result.outcome is Outcome.WITHIN_NOISE:
        reason = reading.chance_note if within_limit is False else "within the variation between steps"
        parts.append(f"; beyond the limit, but {reason}")
    if result.noise is not None:
        parts.append(
            f"; the noise of ±{_format_change(limit, result.noise)} is larger than the limit "
            "allows: a regression smaller than both combined cannot fail"
        )
    if within_limit is None:
        parts.append(f"; {_describe_bound(reading)}, so the measured values cannot decide it")
        if reading.device_note:
            parts.append(f": {reading.device_note}")
    elif not within_limit and reading.warn_reason:
        parts.append(f"; {reading.warn_reason}")
    if reading.growth_note:
        parts.append(f"; {reading.growth_note}")
    return "".join(parts)


def _describe_baseline(result: GateResult) -> str:
    if result.baseline is None or result.value is None:
        return ""
    change = result.value - result.baseline
    if change == 0:
        return " is equal to the baseline"
    side = "above" if change > 0 else "below"
    relative_change = _format_relative_change(result, abs(change))
    return f" is {relative_change} {side} the baseline's {format_number(result.baseline, result.limit.unit)}"


def _format_relative_change(result: GateResult, change: float) -> str:
    if result.limit.unit == Unit.RATIO:
        return format_points(change)
    base = result.baseline or 0.0
    return (
        format_percent(change / base)
        if base > 0 and change / base >= _MIN_DISPLAYED_RATIO
        else format_number(change, result.limit.unit)
    )


def _describe_allowed(limit: Limit, allowed: float) -> str:
    if is_relative(limit):
        return f"allowed {clean_name(limit.said)} ({format_number(allowed, limit.unit)})"
    side = "most" if limit.sense is Sense.AT_MOST else "least"
    return f"allowed at {side} {format_number(allowed, limit.unit)}"


def _describe_excess(unit: Unit, value: float, allowed: float, *, within_limit: bool | None) -> str:
    """Describe by how much the value is beyond the limit if both look the same when formatted."""
    if within_limit is not False or format_number(value, unit) != format_number(allowed, unit):
        return ""
    return f", {format_number(abs(value - allowed), unit)} beyond the limit"


def _describe_interval(limit: Limit, interval: tuple[float, float], *, is_range: bool) -> str:
    quantity = "change" if is_relative(limit) else "distance to the limit"
    low, high = (
        _format_signed_points(end) if limit.unit == Unit.RATIO else format_signed(end, limit.unit)
        for end in interval
    )
    if is_range:
        return f", {quantity} between any two steps, with their spread, {low} to {high}"
    return f", {100 * (limit.confidence or 0.0):g} % interval of the {quantity} {low} to {high}"


def _format_change(limit: Limit, change: float) -> str:
    return format_points(change) if limit.unit == Unit.RATIO else format_number(change, limit.unit)


def _format_signed_points(change: float) -> str:
    if abs(change) < _MIN_DISPLAYED_RATIO:
        return "±0.0 points"
    return f"{'-' if change < 0 else '+'}{format_points(abs(change))}"


def _describe_bound(reading: Reading) -> str:
    """Describe which of the two figures is only a bound."""
    for name, figure in (("the value", reading.current), ("the baseline", reading.baseline)):
        if figure is not None and figure.is_bound:
            if figure.can_be_lower and figure.can_be_higher:
                return f"{name} is only an estimate"
            return f"{name} is {'an upper bound' if figure.can_be_lower else 'a lower bound'}"
    return "the value is not exact"
