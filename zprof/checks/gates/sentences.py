"""Write the sentence of a gate: the measured value, the baseline, the allowed value, and what grew.

peak_memory: 21.4 MiB on rank 1 is 4.2 % above the baseline's 20.5 MiB, allowed +2% (20.9 MiB); …
"""

from collections.abc import Callable

from zprof.checks.gates.reading import Figure, Reading, is_relative
from zprof.model.check import GateResult, Limit, Outcome, Sense
from zprof.model.formatting import format_percent, printable, shorten

Formatter = Callable[[float], str]
#: Smaller changes would be displayed as 0.0 %.
_MIN_DISPLAYED_RATIO = 0.0005
_MAX_NAME_COLUMNS = 60


def clean_name(text: object) -> str:
    """Make a name from a run or a file printable on one line, shortened."""
    return shorten(printable(text), _MAX_NAME_COLUMNS)


def format_signed(value: float, format_value: Formatter) -> str:
    """Format a change with its sign: ``+0.8 MiB`` or ``-12.0 ms``."""
    return f"{'-' if value < 0 else '+'}{format_value(abs(value))}"


def format_ratio(value: float) -> str:
    """Format a ratio as a percentage."""
    return format_percent(value)


def format_points(change: float) -> str:
    """Format a difference of two ratios in percentage points."""
    return f"{change * 100:.1f} points" if change >= _MIN_DISPLAYED_RATIO else "less than 0.1 points"


def format_count(value: float) -> str:
    """Format a count per step, without decimals if it is an integer."""
    return f"{value:.10g}"


def describe_unjudged(result: GateResult, reading: Reading, reason: str) -> str:
    """Describe a limit that was not judged, with the reason."""
    value = "" if result.value is None else f"{reading.format_value(result.value)}{reading.value_note}, "
    status = "unknown" if result.outcome is Outcome.UNKNOWN else "not judged"
    return f"{result.limit.gate}: {value}{status}: {reason}"


def describe_result(
    result: GateResult,
    reading: Reading,
    allowed: Figure,
    *,
    within_limit: bool | None,
    interval: tuple[float, float] | None,
) -> str:
    """Describe the result of a limit that was judged."""
    limit, format_value = result.limit, reading.format_value
    value = result.value or 0.0
    parts = [
        f"{limit.gate}: {format_value(value)}{reading.value_note}{_describe_baseline(result, format_value)}"
    ]
    parts.append(f", {_describe_allowed(limit, float(allowed.value), format_value)}")
    parts.append(_describe_excess(value, float(allowed.value), format_value, within_limit=within_limit))
    if interval is not None:
        parts.append(_describe_interval(limit, interval, format_value))
    if result.outcome is Outcome.WITHIN_NOISE:
        reason = reading.chance_note if within_limit is False else "within the variation between steps"
        parts.append(f"; beyond the limit, but {reason}")
    if result.noise is not None:
        parts.append(
            f"; the noise of ±{_format_change(limit, result.noise, format_value)} is larger than the limit "
            "allows: a regression smaller than both combined cannot fail"
        )
    if within_limit is None:
        parts.append(f"; {_describe_bound(reading)}, so the measured values cannot decide it")
    elif not within_limit and reading.warn_reason:
        parts.append(f"; {reading.warn_reason}")
    if reading.growth_note:
        parts.append(f"; {reading.growth_note}")
    return "".join(parts)


def _describe_baseline(result: GateResult, format_value: Formatter) -> str:
    if result.baseline is None or result.value is None:
        return ""
    change = result.value - result.baseline
    if change == 0:
        return " is equal to the baseline"
    side = "above" if change > 0 else "below"
    relative_change = _format_relative_change(result, abs(change), format_value)
    return f" is {relative_change} {side} the baseline's {format_value(result.baseline)}"


def _format_relative_change(result: GateResult, change: float, format_value: Formatter) -> str:
    if result.limit.unit == "ratio":
        return format_points(change)
    base = result.baseline or 0.0
    return (
        format_percent(change / base)
        if base > 0 and change / base >= _MIN_DISPLAYED_RATIO
        else format_value(change)
    )


def _describe_allowed(limit: Limit, allowed: float, format_value: Formatter) -> str:
    if is_relative(limit):
        return f"allowed {clean_name(limit.said)} ({format_value(allowed)})"
    return f"allowed at {'most' if limit.sense is Sense.AT_MOST else 'least'} {format_value(allowed)}"


def _describe_excess(
    value: float, allowed: float, format_value: Formatter, *, within_limit: bool | None
) -> str:
    """Describe by how much the value is beyond the limit if both look the same when formatted."""
    if within_limit is not False or format_value(value) != format_value(allowed):
        return ""
    return f", {format_value(abs(value - allowed))} beyond the limit"


def _describe_interval(limit: Limit, interval: tuple[float, float], format_value: Formatter) -> str:
    quantity = "change" if is_relative(limit) else "distance to the limit"
    low, high = (
        _format_signed_points(end) if limit.unit == "ratio" else format_signed(end, format_value)
        for end in interval
    )
    return f", {100 * (limit.confidence or 0.0):g} % interval of the {quantity} {low} to {high}"


def _format_change(limit: Limit, change: float, format_value: Formatter) -> str:
    return format_points(change) if limit.unit == "ratio" else format_value(change)


def _format_signed_points(change: float) -> str:
    return format_signed(change, format_points) if abs(change) >= _MIN_DISPLAYED_RATIO else "±0.0 points"


def _describe_bound(reading: Reading) -> str:
    """Describe which of the two figures is only a bound."""
    for name, figure in (("the value", reading.current), ("the baseline", reading.baseline)):
        if figure is not None and figure.is_bound:
            if figure.can_be_lower and figure.can_be_higher:
                return f"{name} is only an estimate"
            return f"{name} is {'an upper bound' if figure.can_be_lower else 'a lower bound'}"
    return "the value is not exact"
