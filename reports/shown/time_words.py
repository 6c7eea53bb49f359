"""How figures of time and of collectives read, alike in every face: marks of bounds, cells, half sentences.

Half sentences begin small and have no full stop: a face that writes prose gives them both.
"""

from collections.abc import Mapping, Sequence

from zprof.model.report import Volume
from zprof.model.time import Alignment, RankTime, StepTime
from zprof.model.units import format_bytes, format_ms, format_ns, format_percent
from zprof.reports.shown.presenter import exposure
from zprof.reports.shown.time_presenter import unsplit_ns

#: Stand before what is a bound.
AT_LEAST, AT_MOST = "≥ ", "≤ "
#: What the split is worth where ranks are missing.
_BOUNDS = {"exposed transfer": AT_MOST, "exposed wait": AT_LEAST}
_MANY = 1e5
_MOVED, _NAMED = 4, 6


def signed(change_ns: int) -> str:
    """A change in milliseconds, with its sign."""
    text = format_ms(change_ns)
    return f"+{text}" if change_ns > 0 and text.strip("0.") else text.replace("-0.0", "0.0")


def bounds(ranks: Sequence[RankTime]) -> Mapping[str, str]:
    """What stands before a term of which the ranks know a bound only, by the name of the term."""
    return _BOUNDS if unsplit_ns(ranks) else {}


def split_marks(is_bound: bool) -> tuple[str, str]:
    """What stands before a wait and before a transfer."""
    return (AT_LEAST, AT_MOST) if is_bound else ("", "")


def mean_count(value: float) -> str:
    """A mean count, without digits that mean nothing."""
    return f"{value:g}" if value < _MANY else f"{value:.0f}"


def ledger_cells(entry: RankTime | StepTime, *, is_bound: bool) -> tuple[str, ...]:
    """Wall, compute, exposed transfer, wait and copies, idle and unexplained of a rank or step, in ms."""
    least, most = split_marks(is_bound)
    return (
        format_ms(entry.wall_ns),
        format_ms(entry.compute_ns),
        most + format_ms(entry.exposed_transfer_ns),
        least + format_ms(entry.exposed_wait_ns),
        format_ms(entry.exposed_memcpy_ns),
        format_ms(entry.idle_ns),
        format_ms(entry.unexplained_ns),
    )


def exposure_words(who: str, ranks: Sequence[RankTime], of: str) -> str:
    """How much of the collectives' time nothing hides; ``of``: a step, or in all."""
    seen = exposure(ranks)
    if seen.ratio is None:
        return f"{who}: none ran in these steps"
    most, least = ("at most ", "at least ") if seen.at_most else ("", "")
    return (
        f"{who} {format_ns(seen.collective_ns)} {of}: {most}{format_ns(seen.exposed_ns)} exposed "
        f"({format_percent(seen.ratio)}), {least}{format_ns(seen.hidden_ns)} hidden"
    )


def unsplit_words(ranks: Sequence[RankTime]) -> str:
    """Of how much of the step waiting and moving are not told apart; empty where they are."""
    unknown = unsplit_ns(ranks)
    if not unknown:
        return ""
    return (
        f"{format_ns(unknown)} of it in collectives of which not all ranks could be compared: there a late "
        "rank and a slow link look alike (≥ and ≤ are bounds)"
    )


def volume_words(volume: Volume) -> str:
    """The bytes of a step against the law of its stage."""
    return (
        f"bytes a step: {format_bytes(volume.seen_bytes)}, the stage's law says "
        f"{format_bytes(volume.expected_bytes)} ({format_percent(volume.ratio)})"
    )


def aligned_words(alignment: Alignment) -> str:
    """What the clocks were aligned by, and to what they are known; the method is a text of the run."""
    if len(alignment.offsets_ns) < 2:
        return "clocks not aligned: the ranks share no collective that could do it"
    return f"clocks aligned by {alignment.method} to {format_ns(alignment.uncertainty_ns)}"


def repair_words(alignment: Alignment) -> tuple[str, ...]:
    """What was done to a match that could not be."""
    said: list[str] = []
    if alignment.shifts:
        shifts = sorted(alignment.shifts.items())[:_MOVED]
        moved = ", ".join(f"rank {rank} by {shift:+d}" for rank, shift in shifts)
        said.append(f"order of collectives moved to fit: {moved}")
    if alignment.excluded:
        names = ", ".join(str(rank) for rank in alignment.excluded[:_NAMED])
        said.append(f"left out, because nothing made them fit: rank {names}")
    return tuple(said)
