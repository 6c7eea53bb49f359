"""List all rules in the order in which they run, with the ledger terms that each one claims."""

from functools import cache

from zprof.causes.cause import Cause as Record
from zprof.causes.cause import Need, Sign
from zprof.model.findings import Cause
from zprof.rules.evidence import ROWS
from zprof.rules.rule import Rule
from zprof.rules.step_edits import EDITS
from zprof.rules.waiting.rotating_straggler import rotating_straggler
from zprof.rules.waiting.straggler_rank import straggler_rank

_WAIT_TERMS = ("exposed_wait_ns", "exposed_transfer_ns")

_LATE_RANK_TERMS = ("idle_ns", "exposed_memcpy_ns")

WAITING_RULES = (
    Rule(
        cause=Cause.STRAGGLER_RANK,
        check=straggler_rank,
        claims=_WAIT_TERMS,
        other_rank_terms=_LATE_RANK_TERMS,
    ),
    Rule(
        cause=Cause.ROTATING_STRAGGLER,
        check=rotating_straggler,
        claims=_WAIT_TERMS,
        other_rank_terms=_LATE_RANK_TERMS,
    ),
)


_STALL = {Cause.STRAGGLER_RANK, Cause.ROTATING_STRAGGLER}
_SIGNS = {
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: Sign.GATHERS_OF_BACKWARD,
    Cause.STRAGGLER_RANK: Sign.LATE_RANK,
    Cause.COPY_OVERHEAD: Sign.COPIES,
    Cause.NO_PREFETCH: Sign.LATE_GATHERS,
    Cause.LOW_BUS_BANDWIDTH: Sign.SLOW_MESSAGES,
    Cause.LATENCY_BOUND_COLLECTIVES: Sign.SHORT_MESSAGES,
    Cause.BLOCKING_SYNC: Sign.HOST_WAITS,
}
_AMOUNTS = {
    Cause.STRAGGLER_RANK: ("own_time_excess",),
}
_NOTES: dict = {}
_REFUTED: dict = {}


@cache
def list_old():
    found = []
    for rules, needs in ((WAITING_RULES, (Need.STEPS,)),):
        for rule in rules:
            cause = rule.cause
            found.append(
                Record(
                    id=cause.finding_id,
                    name=cause.value,
                    meaning=cause.meaning,
                    needs=needs,
                    terms=rule.claims,
                    other_rank_terms=rule.other_rank_terms,
                    taken_from=rule.taken_from,
                    sign=_SIGNS.get(cause),
                    produces=tuple(_SIGNS[each] for each in rule.explains),
                    is_stall=cause in _STALL,
                    is_decisive=cause in (Cause.NO_PREFETCH, Cause.STRAGGLER_RANK),
                    amounts=_AMOUNTS.get(cause, ()),
                    find_signs=rule.check,
                    remove=EDITS.get(cause),
                    is_refuted=_REFUTED.get(cause),
                    is_note=_NOTES.get(cause),
                    evidence=AnyRow(),
                )
            )
    return found


class AnyRow(dict):
    def get(self, key, default=None):
        return ROWS.get(key, default)
