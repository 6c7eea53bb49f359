"""Write the sentence of a gate: the measured value, the baseline, what is allowed, what grew.

peak_memory: 21.4 MiB on rank 1 is 4.2 % above the baseline's 20.5 MiB, allowed +2% (20.9 MiB); …
"""

from collections.abc import Callable

from zprof.checks.gates.reading import Figure, Reading, is_relative
from zprof.model.check import GateResult, Limit, Outcome, Sense
from zprof.model.formatting import format_percent, printable, shorten

Formatter = Callable[[float], str]
#: A smaller change rounds to 0.0 %.
_WORTH_RATIO = 0.0005
_COLUMNS = 60


def clean_name(text: object) -> str:
    """Return a name from a run or a file on one line, shortened."""
    return shorten(printable(text), _COLUMNS)


def format_signed(value: float, shown: Formatter) -> str:
    """Return ``+0.8 MiB`` or ``-12.0 ms``."""
    return f"{'-' if value < 0 else '+'}{shown(abs(value))}"


def format_ratio(value: float) -> str:
    """Return a ratio as percent."""
    return format_percent(value)


def format_points(change: float) -> str:
    """Return a difference of two ratios in percentage points."""
    return f"{change * 100:.1f} points" if change >= _WORTH_RATIO else "less than 0.1 points"


def format_count(value: float) -> str:
    """Return a count per step, without decimals if it is whole."""
    return f"{value:.10g}"


def format_psi(value: float) -> str:
    """Return a value in Ψ, the bytes of all parameters."""
    return f"{value:.4g}Ψ"


def describe_unjudged(result: GateResult, reading: Reading, reason: str) -> str:
    """Return the sentence for a limit that was not judged, with the reason."""
    value = "" if result.value is None else f"{reading.shown(result.value)}{reading.where}, "
    said = "unknown" if result.outcome is Outcome.UNKNOWN else "not judged"
    return f"{result.limit.gate}: {value}{said}: {reason}"


def describe_result(
    result: GateResult,
    reading: Reading,
    allowed: Figure,
    *,
    held: bool | None,
    interval: tuple[float, float] | None,
) -> str:
    """Return the sentence for a limit that was judged."""
    limit, shown = result.limit, reading.shown
    value = result.value or 0.0
    parts = [f"{limit.gate}: {shown(value)}{reading.where}{_describe_baseline(result, shown)}"]
    parts.append(f", {_allowed(limit, float(allowed.value), shown)}")
    parts.append(_beyond(value, float(allowed.value), shown, held=held))
    if interval is not None:
        parts.append(_describe_interval(limit, interval, shown))
    if result.outcome is Outcome.WITHIN_NOISE:
        parts.append("; beyond the limit, by no more than the steps vary")
    if result.noise is not None:
        parts.append(
            f"; the noise of ±{_format_change(limit, result.noise, shown)} is wider than the limit: a "
            "change of less "
            f"than both together cannot fail"
        )
    if held is None:
        parts.append(f"; {_describe_bound(reading)}: what was seen cannot decide it")
    elif not held and reading.only_warns:
        parts.append(f"; {reading.only_warns}")
    if reading.grew:
        parts.append(f"; {reading.grew}")
    return "".join(parts)


def _describe_baseline(result: GateResult, shown: Formatter) -> str:
    if result.baseline is None or result.value is None:
        return ""
    change = result.value - result.baseline
    if change == 0:
        return " is that of the baseline"
    side = "above" if change > 0 else "below"
    return f" is {_change(result, abs(change), shown)} {side} the baseline's {shown(result.baseline)}"


def _change(result: GateResult, change: float, shown: Formatter) -> str:
    if result.limit.unit == "ratio":
        return format_points(change)
    base = result.baseline or 0.0
    return format_percent(change / base) if base > 0 and change / base >= _WORTH_RATIO else shown(change)


def _allowed(limit: Limit, allowed: float, shown: Formatter) -> str:
    if is_relative(limit):
        return f"allowed {clean_name(limit.said)} ({shown(allowed)})"
    return f"allowed at {'most' if limit.sense is Sense.AT_MOST else 'least'} {shown(allowed)}"


def _beyond(value: float, allowed: float, shown: Formatter, *, held: bool | None) -> str:
    """Return by how much the value is beyond the limit if both look the same when formatted."""
    if held is not False or shown(value) != shown(allowed):
        return ""
    return f", {shown(abs(value - allowed))} beyond it"


def _describe_interval(limit: Limit, interval: tuple[float, float], shown: Formatter) -> str:
    of = "of the change" if is_relative(limit) else "of the distance to it"
    low, high = (
        _signed_points(end) if limit.unit == "ratio" else format_signed(end, shown) for end in interval
    )
    return f", {100 * (limit.confidence or 0.0):g} % interval {of} {low} to {high}"


def _format_change(limit: Limit, change: float, shown: Formatter) -> str:
    return format_points(change) if limit.unit == "ratio" else shown(change)


def _signed_points(change: float) -> str:
    return format_signed(change, format_points) if abs(change) >= _WORTH_RATIO else "±0.0 points"


def _describe_bound(reading: Reading) -> str:
    """Return which side is only a bound."""
    for who, figure in (("the value", reading.now), ("the baseline's", reading.before)):
        if figure is not None and figure.is_bound:
            most = "an upper bound" if figure.can_be_lower else "a lower bound"
            return (
                f"{who} is {'no more than a guess' if figure.can_be_lower and figure.can_be_higher else most}"
            )
    return "it is not exact"
