"""ZP609: it is known which ranks wait, but not for whom."""

from zprof.analysis.analysis import RunAnalysis
from zprof.base.formatting import name_ranks
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, find_stuck, make_stuck_signal
from zprof.model.hang import MAX_NAMED_RANKS, HangClass

_FIX = (
    "keep the logs of all ranks: torchrun --log-dir logs -r 3\n"
    "have the next hang leave dumps: TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
)
_GLOO_FIX = (
    "keep the logs of all ranks: torchrun --log-dir logs -r 3\n"
    "py-spy dump --pid PID on each rank shows in which operation it stands"
)

CAUSE = Cause(
    id="ZP609",
    name="hang_not_told",
    meaning="Ranks wait in a collective, and what is known does not tell for whom.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}who holds up {operation} cannot be told{entered}{waiting}",
    evidence=EVIDENCE,
    disprove="with the logs or dumps of all ranks it is told",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.CANNOT_TELL)
    if hang is None:
        return None
    fix = _GLOO_FIX if analysis.run.backend == "gloo" else _FIX
    if not hang.operations:
        sentence = (
            "stuck: {stopped}what the job waits for cannot be told: the logs name no operation{waiting}"
        )
        return make_stuck_signal(hang, fix, sentence)
    ranks = hang.operations[0].entered
    verb = "is" if len(ranks) == 1 else "are"
    entered = f": {name_ranks(ranks, MAX_NAMED_RANKS)} {verb} in it" if ranks else ""
    return make_stuck_signal(hang, fix, words={"entered": entered})
