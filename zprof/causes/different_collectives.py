"""ZP603: ranks entered different operations at the same place of one group's sequence.

The lines at which they entered show why: a branch taken differently, or a loop with a different number of
iterations.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.base.formatting import name_ranks
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, describe_sides, find_stuck, make_stuck_signal
from zprof.model.hang import MAX_NAMED_RANKS, HangClass, format_line

_MAX_LINES = 4

CAUSE = Cause(
    id="ZP603",
    name="different_collectives",
    meaning="Ranks entered different collectives at the same place of a group's sequence.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}{sides}{waiting}",
    evidence=EVIDENCE,
    disprove="TORCH_DISTRIBUTED_DEBUG=DETAIL reports no mismatch",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.DIFFERENT_COLLECTIVES)
    if hang is None:
        return None
    lines = dict.fromkeys(format_line(side.location) for side in hang.sides if side.location is not None)
    which = " and ".join(list(lines)[:_MAX_LINES]) if len(lines) > 1 else "what leads the ranks to it"
    fix = (
        f"compare {which}: a branch, or a loop of another length, sends the ranks different ways\n"
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names both when it happens"
    )
    if hang.culprits:
        return make_stuck_signal(hang, fix, words={"sides": describe_sides(hang)})
    entered = name_ranks(hang.operations[0].entered, MAX_NAMED_RANKS)
    return make_stuck_signal(
        hang,
        fix,
        "stuck: {entered} stand in {operation}, which {peers} finished: the ranks entered different "
        "operations before it{waiting}",
        {"entered": entered},
    )
