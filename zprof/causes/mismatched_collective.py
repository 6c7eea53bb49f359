"""ZP604: ranks entered the same operation with different sizes, counts or dtypes."""

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, describe_sides, find_stuck, make_stuck_signal
from zprof.model.hang import HangClass

_FIX = (
    "make shapes and dtypes equal on all ranks: pad the last batch, or gather the sizes first\n"
    "TORCH_DISTRIBUTED_DEBUG=DETAIL names both when it happens"
)

CAUSE = Cause(
    id="ZP604",
    name="mismatched_collective",
    meaning="Ranks entered the same collective with different sizes, counts or dtypes.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}{sides}{waiting}",
    evidence=EVIDENCE,
    disprove="TORCH_DISTRIBUTED_DEBUG=DETAIL reports no mismatch",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.MISMATCHED)
    return make_stuck_signal(hang, _FIX, words={"sides": describe_sides(hang)}) if hang is not None else None
