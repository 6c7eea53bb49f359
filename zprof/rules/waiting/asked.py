"""Rules about ranks that wait for each other."""

from zprof.model.causes import Cause
from zprof.rules.rule import Rule
from zprof.rules.waiting.straggler_rank import straggler_rank

ASKED = (
    Rule(
        cause=Cause.STRAGGLER_RANK,
        check=straggler_rank,
        claims=("exposed_wait_ns", "exposed_transfer_ns"),
    ),
)
