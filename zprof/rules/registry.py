"""The rules, in the order in which they are asked."""

from zprof.model.causes import Cause
from zprof.rules.low_bus_bandwidth import against, low_bus_bandwidth
from zprof.rules.measurement_artifact import measurement_artifact
from zprof.rules.no_prefetch import no_prefetch
from zprof.rules.rule import Rule
from zprof.rules.straggler_rank import straggler_rank


def rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """All rules; with an expected bus bandwidth that one is held against it."""
    bandwidth = against(expected_bus_bytes_per_s) if expected_bus_bytes_per_s else low_bus_bandwidth
    return (
        Rule(cause=Cause.MEASUREMENT_ARTIFACT, check=measurement_artifact),
        Rule(cause=Cause.NO_PREFETCH, check=no_prefetch, claims=("exposed_transfer_ns", "idle_ns")),
        Rule(
            cause=Cause.STRAGGLER_RANK,
            check=straggler_rank,
            claims=("exposed_wait_ns", "exposed_transfer_ns"),
        ),
        Rule(cause=Cause.LOW_BUS_BANDWIDTH, check=bandwidth, claims=("exposed_transfer_ns", "idle_ns")),
    )
