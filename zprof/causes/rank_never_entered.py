"""ZP601: a rank skipped a collective in which the others wait, or exited before reaching it.

High confidence if the dumps of all group members show it. A rank that enters the collective only after a
different one issues them in another order than its peers; the fix names both.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, find_stuck, make_stuck_signal
from zprof.model.hang import Hang, HangClass, name_operation

_FIX = (
    "make the condition around the collective the same on all ranks: broadcast or all_reduce what it "
    "depends on\n(batches that run out, a loss that is not finite, an early stop on one rank)"
)

CAUSE = Cause(
    id="ZP601",
    name="rank_never_entered",
    meaning="A rank went on without a collective that the others wait in.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}{who} never entered {operation}{entry} and went on{places}{waiting}",
    evidence=EVIDENCE,
    disprove="print the step and the condition on all ranks before the collective: they are equal",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.NEVER_ENTERED)
    if hang is None:
        return None
    return make_stuck_signal(hang, "\n".join(filter(None, (_FIX, _describe_later_entry(hang)))))


def _describe_later_entry(hang: Hang) -> str:
    """Return the advice for a rank that enters the operation late rather than skipping it."""
    if not hang.operations or not hang.culprits:
        return ""
    culprit = hang.culprits[0]
    missed = name_operation(hang.operations[culprit.operation])
    own = next((each for each in hang.operations if culprit.rank in each.entered), None)
    instead = culprit.entered_instead or (name_operation(own) if own is not None else "")
    if not instead:
        return ""
    return (
        f"if rank {culprit.rank} enters {missed} only after {instead}: enter both in the same order "
        "on all ranks"
    )
