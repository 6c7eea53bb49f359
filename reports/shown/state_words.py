"""What faces say of the model states of each rank against the law of the stage."""

from collections.abc import Sequence
from dataclasses import replace

from zprof.model.memory import LawCheck
from zprof.model.units import format_bytes
from zprof.reports.shown.memory_names import signed_bytes
from zprof.reports.shown.presenter import StateCheck, state_checks


def state_lines(laws: Sequence[LawCheck], most: int) -> tuple[str, ...]:
    """A sentence a rank, the one that is furthest off its law first; one where all ranks are alike."""
    checks = state_checks(laws)
    if len({replace(check, rank=0) for check in checks}) == 1:
        return (_state("each rank", checks[0]),)
    worst = sorted(checks, key=lambda check: (-check.off_bytes, check.rank))[:most]
    left = f"{len(worst)} of {len(checks)} ranks, the furthest off"
    return (
        *(_state(f"rank {check.rank}", check) for check in worst),
        *((left,) if len(worst) < len(checks) else ()),
    )


def agreement(check: StateCheck) -> str:
    """How far the measured states are from what explains them; the sign where all are off the same way."""
    if not check.off_bytes:
        return "to the byte"
    off = format_bytes(check.off_bytes)
    if check.has_cause:
        return f"{off} off, of known cause"
    if abs(check.rest_bytes) == check.off_bytes:
        return f"not explained {signed_bytes(check.rest_bytes)}"
    return f"not explained {off}: of one state too much, of another too little"


def _state(who: str, check: StateCheck) -> str:
    sizes = (
        f"law {format_bytes(check.law_bytes)}",
        f"measured {format_bytes(check.measured_bytes)}",
        f"padding {format_bytes(check.padding_bytes)}",
        f"step counters {format_bytes(check.scalar_bytes)}",
    )
    return f"states of {who}: {', '.join(sizes)}: {agreement(check)}"
