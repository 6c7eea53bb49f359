"""ZP608: the ranks that the others wait for have exited, or left no dump or no line in the logs.

No rank can be blamed: low confidence, unless the processes are known to have exited.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.base.formatting import name_signal
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, find_stuck, make_stuck_signal, name_processes
from zprof.model.hang import Hang, HangClass

_FIX = (
    "look for these ranks first: their logs, their hosts (out of memory, preempted)\n"
    "zprof doctor says if a rank would leave a dump"
)
_WATCHED_FIX = (
    "look for these ranks first: their logs, their hosts (out of memory, preempted)\n"
    "(the recording has nothing of them)"
)

CAUSE = Cause(
    id="ZP608",
    name="rank_without_dump",
    meaning="The job waits for ranks that have ended, or left no dump and no line in a log.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}{who} {left}, and {operation}{entry} waits for {them}{waiting}",
    evidence=EVIDENCE,
    disprove="with their dumps, the job waits for another rank",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.RANK_MISSING)
    if hang is None:
        return None
    fix = _WATCHED_FIX if hang.stall_ns is not None else _FIX
    if failed := _describe_failed(hang):
        pending = ", and {operation} waits for {them}" if hang.operations else ""
        sentence = f"stuck: {{who}} {{failed}}{pending}{{waiting}}"
        return make_stuck_signal(hang, name_processes(hang) + fix, sentence, {"failed": failed})
    codes = dict.fromkeys(each.exit_code for each in hang.culprits if each.exit_code is not None)
    if codes:
        ends = ", ".join(f"exit code {code}" if code >= 0 else name_signal(-code) for code in codes)
        pending = ", and {operation} waits for {them}" if hang.operations else ""
        sentence = f"stuck: {{stopped}}{{who}} {{have}} ended ({{ends}}){pending}{{waiting}}"
        return make_stuck_signal(hang, fix, sentence, {"ends": ends})
    if hang.culprits:
        left = "left no dump that could be read whole" if hang.ranks_unread else "left no dump"
        return make_stuck_signal(hang, fix, words={"left": "wrote no line about it" if hang.logs else left})
    operation = hang.operations[0]
    words = {
        "who": f"{operation.unnamed} of the {operation.size} members",
        "left": "wrote no line about it",
        "them": "it" if operation.unnamed == 1 else "them",
    }
    return make_stuck_signal(hang, fix, words=words)


def _describe_failed(hang: Hang) -> str:
    """Return what NCCL's RAS says of the culprits; empty if it says nothing."""
    is_one = len(hang.culprits) == 1
    if hang.culprits and all(each.is_unreachable for each in hang.culprits):
        what = "its process is" if is_one else "their processes are"
        return f"{'does' if is_one else 'do'} not answer NCCL's RAS ({what} stopped or gone)"
    errors = dict.fromkeys(each.error for each in hang.culprits if each.error)
    if not errors:
        return ""
    return f"{'has' if is_one else 'have'} failed in NCCL ({', '.join(errors)})"
