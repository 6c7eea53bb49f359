"""List all rules in the order in which they run, with the ledger terms that each one claims."""

from functools import cache

from zprof.causes.cause import Cause as Record
from zprof.causes.cause import Need, Proof, Sign
from zprof.model.findings import Cause
from zprof.rules.evidence import ROWS
from zprof.rules.rule import Rule
from zprof.rules.step_edits import EDITS, SCHEDULE_CHANGES
from zprof.rules.transfer.latency_bound_collectives import latency_bound_collectives
from zprof.rules.transfer.low_bus_bandwidth import low_bus_bandwidth
from zprof.rules.transfer.sharding_spans_nodes import sharding_spans_nodes
from zprof.rules.transfer.single_unit import single_unit
from zprof.rules.transfer.units_too_small import units_too_small
from zprof.rules.waiting.rotating_straggler import rotating_straggler
from zprof.rules.waiting.straggler_rank import straggler_rank

_TRANSFER_AND_IDLE_TERMS = ("exposed_transfer_ns", "idle_ns")
#: Anything that delays gathers also delays the backward's gathers.
_BACKWARD_REGATHERS = Cause.NEEDLESS_RESHARD_AFTER_FORWARD

#: Each message also waits for its last rank, so fewer messages wait less.
_MESSAGE_TERMS = ("exposed_transfer_ns", "idle_ns", "exposed_wait_ns")

#: Rules about message sizes and about the hosts that messages move between.
_MESSAGE_SIZE_RULES = (
    Rule(
        cause=Cause.LATENCY_BOUND_COLLECTIVES,
        check=latency_bound_collectives,
        claims=_MESSAGE_TERMS,
        explains=(Cause.LOW_BUS_BANDWIDTH, _BACKWARD_REGATHERS),
    ),
    Rule(
        cause=Cause.UNITS_TOO_SMALL,
        check=units_too_small,
        claims=_MESSAGE_TERMS,
        explains=(
            Cause.LATENCY_BOUND_COLLECTIVES,
            Cause.LOW_BUS_BANDWIDTH,
            Cause.NO_PREFETCH,
            _BACKWARD_REGATHERS,
        ),
    ),
    Rule(
        cause=Cause.SINGLE_UNIT,
        check=single_unit,
        claims=_MESSAGE_TERMS,
        explains=(Cause.NO_PREFETCH, _BACKWARD_REGATHERS),
    ),
    Rule(
        cause=Cause.SHARDING_SPANS_NODES,
        check=sharding_spans_nodes,
        claims=_MESSAGE_TERMS,
        explains=(Cause.LOW_BUS_BANDWIDTH, _BACKWARD_REGATHERS),
    ),
)


TRANSFER_RULES = (
    Rule(
        cause=Cause.LOW_BUS_BANDWIDTH,
        check=low_bus_bandwidth,
        claims=_TRANSFER_AND_IDLE_TERMS,
        explains=(_BACKWARD_REGATHERS,),
    ),
    *_MESSAGE_SIZE_RULES,
)


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


_SPEED = {
    Cause.LATENCY_BOUND_COLLECTIVES,
    Cause.LOW_BUS_BANDWIDTH,
    Cause.SHARDING_SPANS_NODES,
    Cause.UNITS_TOO_SMALL,
}
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
_NOTES = {
    Cause.LOW_BUS_BANDWIDTH: lambda analysis: True,
}
_REFUTED: dict = {}


@cache
def list_old():
    found = []
    for rules, needs in (((*TRANSFER_RULES, *WAITING_RULES), (Need.STEPS,)),):
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
                    proof=Proof.SPEEDS if cause in _SPEED else Proof.TIMES,
                    is_stall=cause in _STALL,
                    is_decisive=cause in (Cause.NO_PREFETCH, Cause.STRAGGLER_RANK),
                    amounts=_AMOUNTS.get(cause, ()),
                    find_signs=rule.check,
                    remove=EDITS.get(cause),
                    list_changes=SCHEDULE_CHANGES.get(cause),
                    is_refuted=_REFUTED.get(cause),
                    is_note=_NOTES.get(cause),
                    evidence=AnyRow(),
                )
            )
    return found


class AnyRow(dict):
    def get(self, key, default=None):
        return ROWS.get(key, default)
