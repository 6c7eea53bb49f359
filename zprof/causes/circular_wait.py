"""ZP605: ranks wait for one another in operations of several groups, entered in a different order."""

from zprof.analysis.analysis import RunAnalysis
from zprof.base.formatting import name_ranks
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, enter_in_same_order, find_stuck, make_stuck_signal
from zprof.model.hang import MAX_NAMED_RANKS, Hang, HangClass, describe_operation, format_line

CAUSE = Cause(
    id="ZP605",
    name="circular_wait",
    meaning="Ranks wait for one another in collectives of several groups, entered in different orders.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}{standing}: {order}{waiting}",
    evidence=EVIDENCE,
    disprove="with the order fixed, the job still stops in these two collectives",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.CIRCULAR_WAIT)
    if hang is None:
        return None
    who = name_ranks([each.rank for each in hang.culprits], MAX_NAMED_RANKS)
    if len(hang.culprits) == 1:
        order = f"they wait for one another, {who} in another order than before"
    elif len(hang.culprits) > 2:
        order = f"{who} wait for one another in a circle, in different orders"
    else:
        order = "they wait for one another, in different orders"
    words = {"standing": _describe_standing(hang), "order": order}
    return make_stuck_signal(hang, enter_in_same_order(hang), words=words)


def _describe_standing(hang: Hang) -> str:
    """Return which ranks are in each of the first two operations that wait for each other."""
    parts = []
    for number, operation in enumerate(hang.operations[:2]):
        ranks = next((wait.ranks for wait in hang.waits if wait.operation == number), operation.entered)
        line = format_line(operation.location)
        verb = "is in" if len(ranks) == 1 else "are in"
        place = f" ({line})" if line else ""
        parts.append(f"{name_ranks(ranks, MAX_NAMED_RANKS)} {verb} {describe_operation(operation)}{place}")
    return ", ".join(parts)
