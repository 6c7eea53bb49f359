"""ZP606: a rank has not finished an operation that its peers finished: its device or process has stopped."""

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, find_stuck, make_stuck_signal
from zprof.model.hang import HangClass

_FIX = (
    "look for Xid errors in dmesg and nvidia-smi -q on the host of that rank, then take the device out\n"
    "(its log may have an error that the other ranks' timeouts have covered)"
)

CAUSE = Cause(
    id="ZP606",
    name="device_stopped",
    meaning="A rank has not finished collectives that its peers finished: its device or process has stopped.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}{who} {have} not finished {operation}, which {peers} finished: "
    "device stopped{waiting}",
    evidence=EVIDENCE,
    disprove="after a restart on another device the job stops on the same rank again",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.DEVICE_STOPPED)
    return make_stuck_signal(hang, _FIX) if hang is not None else None
