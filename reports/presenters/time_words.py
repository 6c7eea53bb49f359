"""How times and collectives are written: bounds, cells of the ledger, sentences."""

from collections.abc import Mapping, Sequence

from zprof.model.formatting import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.model.report import Volume
from zprof.model.time import Alignment, RankTime, StepTime, Time, WindowPolicy
from zprof.reports.page import UNKNOWN
from zprof.reports.presenters.time_figures import exposure, is_unknown_size, is_whole_trace, unsplit_ns

#: Marks of bounds.
AT_LEAST, AT_MOST = "≥ ", "≤ "
#: What wait and transfer are if ranks are missing.
_BOUNDS = {"exposed transfer": AT_MOST, "exposed wait": AT_LEAST}
_LARGE_COUNT = 1e5
_MAX_MOVED, _MAX_NAMED = 4, 6
#: The source of a window whose steps the program marked itself, and of one over a trace without steps.
_MARKED, _NO_STEPS = "recorder", "whole trace"


def describe_period(time: Time) -> str:
    """Return what the figures are of: a step, or the whole of a recording without steps."""
    return "in total" if is_whole_trace(time) else "per step"


def format_signed_ms(change_ns: int) -> str:
    """Return a change in milliseconds with its sign."""
    text = format_ms(change_ns)
    return f"+{text}" if change_ns > 0 and text.strip("0.") else text.replace("-0.0", "0.0")


def format_optional_ratio(ratio: float | None) -> str:
    """Return a share in percent, or a dash."""
    return UNKNOWN if ratio is None else format_percent(ratio)


def format_optional_rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth, or a dash."""
    return UNKNOWN if bytes_per_s is None else format_rate(bytes_per_s)


def format_message_size(kind: str, size_bytes: int) -> str:
    """Return the bytes of a collective, or that the trace has no size."""
    return "unknown" if is_unknown_size(kind, size_bytes) else format_bytes(size_bytes)


def bounds(ranks: Sequence[RankTime]) -> Mapping[str, str]:
    """Return the marks of the terms that are only bounds, by the name of the term."""
    return _BOUNDS if unsplit_ns(ranks) else {}


def get_bound_marks(is_bound: bool) -> tuple[str, str]:
    """Return the marks of a wait and of a transfer."""
    return (AT_LEAST, AT_MOST) if is_bound else ("", "")


def format_mean_count(value: float) -> str:
    """Return a mean count without meaningless digits."""
    return f"{value:g}" if value < _LARGE_COUNT else f"{value:.0f}"


def format_ledger_cells(entry: RankTime | StepTime, *, is_bound: bool) -> tuple[str, ...]:
    """Return wall, compute, exposed transfer, wait and copies, idle and unexplained in ms."""
    least, most = get_bound_marks(is_bound)
    return (
        format_ms(entry.wall_ns),
        format_ms(entry.compute_ns),
        most + format_ms(entry.exposed_transfer_ns),
        least + format_ms(entry.exposed_wait_ns),
        format_ms(entry.exposed_memcpy_ns),
        format_ms(entry.idle_ns),
        format_ms(entry.unexplained_ns),
    )


def describe_exposure(who: str, ranks: Sequence[RankTime], span: str) -> str:
    """Return how much of the collectives' time no compute hides."""
    seen = exposure(ranks)
    if seen.ratio is None:
        return f"{who}: none ran in these steps."
    most, least = ("at most ", "at least ") if seen.at_most else ("", "")
    return (
        f"{who}: {format_ns(seen.collective_ns)} {span}, {most}{format_ns(seen.exposed_ns)} exposed "
        f"({format_percent(seen.ratio)}), {least}{format_ns(seen.hidden_ns)} hidden."
    )


def describe_unsplit_time(ranks: Sequence[RankTime]) -> str:
    """Return how much of the step cannot be split into wait and transfer; empty if all can."""
    unknown = unsplit_ns(ranks)
    if not unknown:
        return ""
    return (
        f"{format_ns(unknown)} of it is in collectives of which not all ranks could be compared; there a "
        "late rank and a slow link look alike (≥ and ≤ are bounds)."
    )


def describe_volume(volume: Volume) -> str:
    """Return the bytes of a step against the ZeRO formula of its stage."""
    return (
        f"Bytes per step: {format_bytes(volume.seen_bytes)}; the ZeRO formula of the stage gives "
        f"{format_bytes(volume.expected_bytes)} ({format_percent(volume.ratio)})."
    )


def describe_alignment(alignment: Alignment) -> tuple[str, ...]:
    """Return how the clocks were aligned and how well, and what was done to a match that could not be."""
    if len(alignment.offsets_ns) < 2:
        aligned = "Clocks not aligned: the ranks share no collective that could do it"
    else:
        aligned = f"Clocks aligned by {alignment.method} to {format_ns(alignment.uncertainty_ns)}"
    unmatched = f", {alignment.unmatched:,} not" if alignment.unmatched else ""
    lines = [f"{aligned}; {alignment.matched:,} collectives matched across ranks{unmatched}."]
    if alignment.shifts:
        shifts = sorted(alignment.shifts.items())[:_MAX_MOVED]
        moved = ", ".join(f"rank {rank} by {shift:+d}" for rank, shift in shifts)
        lines.append(f"The order of collectives was shifted to fit: {moved}.")
    if alignment.excluded:
        names = ", ".join(str(rank) for rank in alignment.excluded[:_MAX_NAMED])
        lines.append(f"Left out because nothing made them fit: rank {names}.")
    return tuple(lines)


def describe_window(time: Time) -> str:
    """Return what was measured, if that is not the steps as a recorder marked them; else empty."""
    window = time.window
    if window is None:
        return ""
    if window.policy is WindowPolicy.TRACE:
        return "Measured: the whole recording as one window (--window trace)."
    outside = window.pre_window_ns
    left_out = f"{format_ns(outside)} of device work outside the steps is left out" if outside else ""
    if window.source == _MARKED:
        return f"{left_out}." if left_out else ""
    source = "the whole trace as one step, since it marks none"
    if window.source != _NO_STEPS:
        source = f"steps by {window.source}"
    return f"Measured: {source}{'; ' if left_out else ''}{left_out}."
