"""ZP607: all ranks have entered an operation, and none leaves it: the network, or an unknown peer."""

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.stuck import EVIDENCE, find_stuck, make_stuck_signal
from zprof.model.hang import HangClass

_FIX = (
    "check the link: NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=NET, the counters of the network cards\n"
    "nccl-tests over the same ranks shows if the link works at all"
)
_GLOO_FIX = (
    "check the link: GLOO_SOCKET_IFNAME names the interface, ping and iperf3 show if it works\n"
    "look at the hosts of the ranks that have not finished: out of memory, swapping, stopped"
)

CAUSE = Cause(
    id="ZP607",
    name="collective_not_finished",
    meaning="All ranks have entered a collective, and none leaves it.",
    needs=(Need.HANG,),
    sentence="stuck: {stopped}all ranks have entered {operation}{entry}, and none leaves it{waiting}",
    evidence=EVIDENCE,
    disprove="nccl-tests over the same ranks finishes with the expected bandwidth",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the job is stuck for this reason."""
    hang = find_stuck(analysis, HangClass.NOT_FINISHED)
    if hang is None:
        return None
    return make_stuck_signal(hang, _GLOO_FIX if analysis.run.backend == "gloo" else _FIX)
