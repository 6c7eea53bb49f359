"""ZP602: a rank has finished all operations that it entered, and its host does not enter the next one.

No other rank holds it up. Its current line shows why it is stuck: saved by the watcher, or by py-spy.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.base.formatting import printable
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, find_stuck, list_stopped, make_stuck_signal
from zprof.model.hang import MAX_NAMED_RANKS, Hang, HangClass, describe_location

_FIX = (
    "py-spy dump --pid PID on that rank, several times: the line that stays is the one\n"
    "next time, zprof record --watch 60 saves the stacks of all ranks before the job is killed"
)

CAUSE = Cause(
    id="ZP602",
    name="host_stuck",
    meaning="A rank has finished all that it entered, and its host does not enter the next collective.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}{who} {have} not entered {operation}{entry}{free}{places}{waiting}",
    evidence=EVIDENCE,
    disprove="the rank enters the collective when it is given more time: then it is slow, not stuck",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.HOST_STUCK)
    if hang is None:
        return None
    is_one = len(hang.culprits) == 1
    sentence = ""
    if not hang.operations:
        sentence = "stuck: {stopped}{who} {have} nothing to wait for, and {do} not go on{places}{waiting}"
    elif hang.logs:
        sentence = "stuck: {stopped}{who} {have} not entered {operation}{lasts}{waiting}"
    words = {
        "do": "does" if is_one else "do",
        "lasts": _describe_lasts(hang),
        "free": "" if list_stopped(hang) else f", and nothing holds {'it' if is_one else 'them'} up",
    }
    return make_stuck_signal(hang, _find_line(hang), sentence, words)


def _describe_lasts(hang: Hang) -> str:
    """Return ": #211 was its last" if all culprits have the same last operation."""
    lasts = {each.last_sequence for each in hang.culprits}
    last = lasts.pop() if len(lasts) == 1 else None
    if last is None:
        return ""
    is_one = len(hang.culprits) == 1
    if not last:
        return f": {'it' if is_one else 'they'} entered none"
    return f": #{last} was {'its' if is_one else 'their'} last"


def _find_line(hang: Hang) -> str:
    """Return how to find the current line of a host, or what to do about that line if it is known."""
    if hang.stall_ns is None and all(each.process is None for each in hang.culprits):
        return _FIX
    lines = []
    for culprit in hang.culprits[:MAX_NAMED_RANKS]:
        process = culprit.process
        if culprit.location is not None:
            lines.append(
                f"rank {culprit.rank} stands at {describe_location(culprit.location)}: what it calls there "
                "does not return (a loop, a lock, a queue, a file); give it a timeout"
            )
        elif process is not None:
            lines.append(
                f"rank {culprit.rank}: py-spy dump --pid {process.number} on {printable(process.host)}, "
                "while it hangs: the line that stays is the one"
            )
        else:
            lines.append(f"rank {culprit.rank}: py-spy dump --pid PID, while it hangs")
    if hang.stall_ns is None:
        lines.append(_FIX.rpartition("\n")[2])
    return "\n".join(lines)
