"""The rules, in the order in which they are asked."""

from zprof.model.causes import Cause
from zprof.rules.low_bus_bandwidth import against, low_bus_bandwidth
from zprof.rules.measurement_artifact import measurement_artifact
from zprof.rules.memory.activations_dominate import activations_dominate
from zprof.rules.memory.allocator_retries import allocator_retries
from zprof.rules.memory.buffers_dominate import buffers_dominate
from zprof.rules.memory.fragmentation import fragmentation
from zprof.rules.memory.init_spike import init_spike
from zprof.rules.memory.logits_dominate import logits_dominate
from zprof.rules.memory.outside_allocator import outside_allocator
from zprof.rules.memory.replicated_state import replicated_state
from zprof.rules.memory.retained_gradients import retained_gradients
from zprof.rules.memory.wrong_stage import wrong_stage
from zprof.rules.no_prefetch import no_prefetch
from zprof.rules.rule import Rule
from zprof.rules.straggler_rank import straggler_rank

#: They read the memory of the report, and claim no time.
_MEMORY = (
    Rule(cause=Cause.BUFFERS_DOMINATE, check=buffers_dominate),
    Rule(cause=Cause.FRAGMENTATION, check=fragmentation),
    Rule(cause=Cause.ACTIVATIONS_DOMINATE, check=activations_dominate),
    Rule(cause=Cause.LOGITS_DOMINATE, check=logits_dominate),
    Rule(cause=Cause.REPLICATED_STATE, check=replicated_state),
    Rule(cause=Cause.WRONG_STAGE, check=wrong_stage),
    Rule(cause=Cause.RETAINED_GRADIENTS, check=retained_gradients),
    Rule(cause=Cause.INIT_SPIKE, check=init_spike),
    Rule(cause=Cause.OUTSIDE_ALLOCATOR, check=outside_allocator),
    Rule(cause=Cause.ALLOCATOR_RETRIES, check=allocator_retries),
)


def memory_rules() -> tuple[Rule, ...]:
    """Those that read memory alone."""
    return _MEMORY


def rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """All rules; with an expected bus bandwidth that one is held against it."""
    return (*time_rules(expected_bus_bytes_per_s), *_MEMORY)


def time_rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """Those that read time."""
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
