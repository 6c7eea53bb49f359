"""Rules about how collectives move their bytes, and when."""

from zprof.model.causes import Cause
from zprof.rules.rule import Rule
from zprof.rules.transfer.low_bus_bandwidth import against, low_bus_bandwidth
from zprof.rules.transfer.no_prefetch import no_prefetch
from zprof.rules.transfer.rate_limited_prefetch import rate_limited_prefetch


def asked(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """All of them; with an expected bus bandwidth that one is held against it."""
    bandwidth = against(expected_bus_bytes_per_s) if expected_bus_bytes_per_s else low_bus_bandwidth
    return (
        Rule(cause=Cause.NO_PREFETCH, check=no_prefetch, claims=("exposed_transfer_ns", "idle_ns")),
        Rule(
            cause=Cause.RATE_LIMITED_PREFETCH,
            check=rate_limited_prefetch,
            claims=("idle_ns", "exposed_transfer_ns"),
            explains=(Cause.BLOCKING_SYNC, Cause.CPU_BOUND_LAUNCH),
        ),
        Rule(cause=Cause.LOW_BUS_BANDWIDTH, check=bandwidth, claims=("exposed_transfer_ns", "idle_ns")),
    )
