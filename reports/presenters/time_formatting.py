"""Format times and collectives: bounds, cells of the ledger, sentences."""

from collections.abc import Sequence

from msgspec.structs import replace

from zprof.model.formatting import format_bytes, format_ns, format_percent, format_psi
from zprof.model.leaves import take_value
from zprof.model.quantities import BOUND_WORDS, Bound, Bounds, Value, negate_bound
from zprof.model.report import Report, Volume
from zprof.model.time import (
    LEDGER_NAMES,
    Alignment,
    RankTime,
    StepTime,
    Time,
    WindowPolicy,
    has_unsplit_wait,
    mean_over_ranks,
)
from zprof.model.training import ENGINE_TITLES, Engine
from zprof.reports.presenters.time_figures import exposure

_MAX_MOVED, _MAX_NAMED = 4, 6
#: Source of a window whose steps the program itself marked.
_MARKED = "recorder"


def make_ledger_cells(entry: RankTime | StepTime, bounds: Bounds) -> tuple[Value, ...]:
    """Return wall, compute, exposed transfer, wait and copies, idle and unexplained as cells in ms."""
    return tuple(
        replace(take_value(entry, term, in_ms=True), bound=bounds.get(term, Bound.EXACT))
        for term in ("wall_ns", *LEDGER_NAMES)
    )


def describe_exposure(subject: str, ranks: Sequence[RankTime], period: str) -> str:
    """Describe the exposed and hidden parts of the collective time."""
    exposed = exposure(ranks)
    if exposed.ratio is None:
        return f"{subject}: none ran in these steps."
    at_most, at_least = BOUND_WORDS[exposed.bound], BOUND_WORDS[negate_bound(exposed.bound)]
    return (
        f"{subject}: {format_ns(exposed.collective_ns)} {period}, "
        f"{at_most}{format_ns(exposed.exposed_ns)} exposed ({format_percent(exposed.ratio)}), "
        f"{at_least}{format_ns(exposed.hidden_ns)} hidden."
    )


def describe_unsplit_time(ranks: Sequence[RankTime]) -> str:
    """Describe the time that cannot be split into wait and transfer; empty if there is none."""
    if not has_unsplit_wait(ranks):
        return ""
    unsplit = format_ns(mean_over_ranks(ranks, "unsplit_ns"))
    return (
        f"{unsplit} of the exposed time is in collectives that could not be compared on all "
        "ranks; there a late rank looks like a slow link (≥ and ≤ are bounds)."
    )


def describe_volume(report: Report) -> str:
    """Compare the bytes of a rank with the ZeRO formula of the stage, and with the engine's own scheme."""
    volume = report.volume
    if volume is None:
        return ""
    scheme = ""
    if volume.engine_bytes is not None:
        name = report.run.engine
        title = ENGINE_TITLES[Engine(name)] if name in set(Engine) else name
        scheme = f", {title} with these settings {_format_expected(volume, volume.engine_bytes)}"
    formula = f"{_format_expected(volume, volume.expected_bytes)} ({format_percent(volume.ratio)})"
    return (
        f"Bytes {report.time.basis}: {format_bytes(volume.seen_bytes)}; "
        f"the ZeRO formula for this stage gives {formula}{scheme}."
    )


def _format_expected(volume: Volume, expected_bytes: int) -> str:
    """Return bytes, and the multiple of all parameters if the engine differs from the formula."""
    if volume.engine_bytes is None or not volume.parameter_bytes:
        return format_bytes(expected_bytes)
    return f"{format_bytes(expected_bytes)} = {format_psi(expected_bytes / volume.parameter_bytes)}"


def describe_alignment(alignment: Alignment) -> tuple[str, ...]:
    """Describe how well the clocks were aligned, and how mismatched collectives were handled."""
    if len(alignment.offsets_ns) < 2:
        aligned = "Clocks not aligned: the ranks have no suitable collective in common"
    else:
        aligned = f"Clocks aligned by {alignment.method} to {format_ns(alignment.uncertainty_ns)}"
    unmatched = f", {alignment.unmatched:,} not matched" if alignment.unmatched else ""
    lines = [f"{aligned}; {alignment.matched:,} collectives matched across ranks{unmatched}."]
    if alignment.shifts:
        shifts = sorted(alignment.shifts.items())[:_MAX_MOVED]
        moved = ", ".join(f"rank {rank} by {shift:+d}" for rank, shift in shifts)
        lines.append(f"Collective sequences were shifted to match: {moved}.")
    if alignment.excluded:
        names = ", ".join(str(rank) for rank in alignment.excluded[:_MAX_NAMED])
        lines.append(f"Ranks left out because their collectives could not be matched: {names}.")
    return tuple(lines)


def describe_window(time: Time) -> str:
    """Describe the measured window; empty if its steps were marked by the recorder."""
    window = time.window
    if window is None:
        return ""
    if window.policy is WindowPolicy.TRACE:
        return "Measured: the entire recording as one window (--window trace)."
    outside = window.pre_window_ns
    excluded = f"{format_ns(outside)} of device work outside the steps is excluded" if outside else ""
    if window.source == _MARKED:
        return f"{excluded}." if excluded else ""
    source = f"steps marked by {window.source}"
    if window.is_whole:
        source = "the entire trace as one window, because it has no step marks"
    return f"Measured: {source}{'; ' if excluded else ''}{excluded}."
