"""Rules about ranks that wait for each other."""

from zprof.model.causes import Cause
from zprof.rules.rule import Rule
from zprof.rules.waiting.rotating_straggler import rotating_straggler
from zprof.rules.waiting.straggler_rank import straggler_rank

_WAITING = ("exposed_wait_ns", "exposed_transfer_ns")

_LATE = ("idle_ns", "exposed_memcpy_ns")

ASKED = (
    Rule(cause=Cause.STRAGGLER_RANK, check=straggler_rank, claims=_WAITING, elsewhere=_LATE),
    Rule(cause=Cause.ROTATING_STRAGGLER, check=rotating_straggler, claims=_WAITING, elsewhere=_LATE),
)
