"""Rules about how collectives move their bytes, and when."""

from zprof.model.causes import Cause
from zprof.rules.rule import Rule
from zprof.rules.transfer.compute_blocks_comm import compute_blocks_comm
from zprof.rules.transfer.latency_bound_collectives import latency_bound_collectives
from zprof.rules.transfer.low_bus_bandwidth import against, low_bus_bandwidth
from zprof.rules.transfer.no_prefetch import no_prefetch
from zprof.rules.transfer.rate_limited_prefetch import rate_limited_prefetch
from zprof.rules.transfer.sharding_spans_nodes import sharding_spans_nodes
from zprof.rules.transfer.single_unit import single_unit
from zprof.rules.transfer.units_too_small import units_too_small

_MOVING = ("exposed_transfer_ns", "idle_ns")
#: Whatever makes gathers late makes those of a backward late, too.
_REGATHERS = Cause.NEEDLESS_RESHARD_AFTER_FORWARD

#: How large messages are, and between whom.
_SIZES = (
    Rule(
        cause=Cause.LATENCY_BOUND_COLLECTIVES,
        check=latency_bound_collectives,
        claims=_MOVING,
        explains=(Cause.LOW_BUS_BANDWIDTH, _REGATHERS),
    ),
    Rule(
        cause=Cause.UNITS_TOO_SMALL,
        check=units_too_small,
        claims=_MOVING,
        explains=(Cause.LATENCY_BOUND_COLLECTIVES, Cause.LOW_BUS_BANDWIDTH, Cause.NO_PREFETCH, _REGATHERS),
    ),
    Rule(
        cause=Cause.SINGLE_UNIT,
        check=single_unit,
        claims=_MOVING,
        explains=(Cause.NO_PREFETCH, _REGATHERS),
    ),
    Rule(
        cause=Cause.SHARDING_SPANS_NODES,
        check=sharding_spans_nodes,
        claims=_MOVING,
        explains=(Cause.LOW_BUS_BANDWIDTH, _REGATHERS),
    ),
)


def asked(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """All of them; with an expected bus bandwidth that one is held against it."""
    bandwidth = against(expected_bus_bytes_per_s) if expected_bus_bytes_per_s else low_bus_bandwidth
    return (
        Rule(
            cause=Cause.NO_PREFETCH,
            check=no_prefetch,
            claims=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
            explains=(_REGATHERS,),
        ),
        Rule(
            cause=Cause.RATE_LIMITED_PREFETCH,
            check=rate_limited_prefetch,
            claims=("idle_ns", "exposed_transfer_ns"),
            explains=(Cause.BLOCKING_SYNC,),
        ),
        Rule(
            cause=Cause.COMPUTE_BLOCKS_COMM,
            check=compute_blocks_comm,
            claims=_MOVING,
            explains=(_REGATHERS,),
        ),
        Rule(cause=Cause.LOW_BUS_BANDWIDTH, check=bandwidth, claims=_MOVING, explains=(_REGATHERS,)),
        *_SIZES,
    )
