"""List all rules in the order in which they run, with the ledger terms that each one claims."""

from zprof.model.findings import Cause
from zprof.rules.compute.allocator_retries import allocator_retries
from zprof.rules.compute.blocking_sync import blocking_sync
from zprof.rules.compute.comm_slows_compute import comm_slows_compute
from zprof.rules.compute.copy_overhead import copy_overhead
from zprof.rules.compute.cpu_bound_launch import cpu_bound_launch
from zprof.rules.compute.data_loader import data_loader
from zprof.rules.compute.lost_compute_efficiency import lost_compute_efficiency
from zprof.rules.compute.offload_on_critical_path import offload_on_critical_path
from zprof.rules.hang.stuck_job import hang_rules
from zprof.rules.measurement_artifact import measurement_artifact
from zprof.rules.memory.activations_dominate import activations_dominate
from zprof.rules.memory.attention_scores import attention_scores
from zprof.rules.memory.buffers_dominate import buffers_dominate
from zprof.rules.memory.fragmentation import fragmentation
from zprof.rules.memory.init_spike import init_spike
from zprof.rules.memory.logits_dominate import logits_dominate
from zprof.rules.memory.out_of_memory import out_of_memory
from zprof.rules.memory.outside_allocator import outside_allocator
from zprof.rules.memory.replicated_state import replicated_state
from zprof.rules.memory.retained_gradients import retained_gradients
from zprof.rules.memory.states_dominate import states_dominate
from zprof.rules.memory.weight_copies import weight_copies
from zprof.rules.memory.wrong_stage import wrong_stage
from zprof.rules.rule import Rule
from zprof.rules.settings.option_without_effect import option_without_effect
from zprof.rules.settings.slowed_by_instruments import slowed_by_instruments
from zprof.rules.transfer.compute_blocks_comm import compute_blocks_comm
from zprof.rules.transfer.latency_bound_collectives import latency_bound_collectives
from zprof.rules.transfer.low_bus_bandwidth import check_against, low_bus_bandwidth
from zprof.rules.transfer.no_prefetch import no_prefetch
from zprof.rules.transfer.rate_limited_prefetch import rate_limited_prefetch
from zprof.rules.transfer.sharding_spans_nodes import sharding_spans_nodes
from zprof.rules.transfer.single_unit import single_unit
from zprof.rules.transfer.units_too_small import units_too_small
from zprof.rules.volume.accumulation_regathers import accumulation_regathers
from zprof.rules.volume.accumulation_syncs import accumulation_syncs
from zprof.rules.volume.checkpoint_regathers import checkpoint_regathers
from zprof.rules.volume.fp32_gather import fp32_gather
from zprof.rules.volume.fp32_reduce import fp32_reduce
from zprof.rules.volume.last_unit_regathered import last_unit_regathered
from zprof.rules.volume.needless_reshard_after_forward import needless_reshard_after_forward
from zprof.rules.volume.uneven_shapes import uneven_shapes
from zprof.rules.volume.unhidden_optimizer_gather import unhidden_optimizer_gather
from zprof.rules.waiting.rotating_straggler import rotating_straggler
from zprof.rules.waiting.straggler_rank import straggler_rank


def memory_rules() -> tuple[Rule, ...]:
    """Return the rules that need memory only; one of them also uses times if known."""
    return (*MEMORY_RULES, ALLOCATOR_RETRIES_RULE)


def all_rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """Return all rules; low_bus_bandwidth compares with the expected bandwidth if given."""
    memory = memory_rules()
    timed = [rule for rule in time_rules(expected_bus_bytes_per_s) if rule not in memory]
    return (*hang_rules(), *timed, *memory)


def time_rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """Return the rules about time: the recording itself first, then rules that do not depend on clocks."""
    return (
        *MEASUREMENT_RULES,
        *VOLUME_RULES,
        *transfer_rules(expected_bus_bytes_per_s),
        *WAITING_RULES,
        *HOST_RULES,
        *DEVICE_RULES,
    )


MEASUREMENT_RULES = (
    Rule(cause=Cause.MEASUREMENT_ARTIFACT, check=measurement_artifact),
    Rule(cause=Cause.SLOWED_BY_INSTRUMENTS, check=slowed_by_instruments),
    Rule(cause=Cause.OPTION_WITHOUT_EFFECT, check=option_without_effect),
)


_TRANSFER_TERMS = ("exposed_transfer_ns",)
#: Half of the bytes also take half of the copies into and out of their buffers, which are compute.
_HALVED_TERMS = ("exposed_transfer_ns", "compute_ns")
#: Removing a collective also removes its waits, its launches and, on a CPU, its copies.
_REMOVED_COLLECTIVE_TERMS = ("exposed_transfer_ns", "idle_ns", "exposed_wait_ns", "compute_ns")

VOLUME_RULES: tuple[Rule, ...] = (
    Rule(
        cause=Cause.FP32_REDUCE,
        check=fp32_reduce,
        claims=_HALVED_TERMS,
        # reductions that take twice as long delay the backward's gathers queued behind them
        explains=(Cause.NEEDLESS_RESHARD_AFTER_FORWARD,),
    ),
    Rule(
        cause=Cause.FP32_GATHER,
        check=fp32_gather,
        claims=_HALVED_TERMS,
        # gathers of twice the bytes arrive late, including those of the backward
        explains=(Cause.NEEDLESS_RESHARD_AFTER_FORWARD,),
    ),
    Rule(cause=Cause.UNHIDDEN_OPTIMIZER_GATHER, check=unhidden_optimizer_gather, claims=_TRANSFER_TERMS),
    Rule(
        cause=Cause.UNEVEN_SHAPES,
        check=uneven_shapes,
        # waits for a rank with longer inputs, transfer of padding, kernels that write the padding
        claims=("exposed_wait_ns", "exposed_transfer_ns", "compute_ns"),
        explains=(Cause.STRAGGLER_RANK, Cause.COPY_OVERHEAD),
    ),
    Rule(cause=Cause.ACCUMULATION_SYNCS, check=accumulation_syncs, claims=_REMOVED_COLLECTIVE_TERMS),
    Rule(cause=Cause.ACCUMULATION_REGATHERS, check=accumulation_regathers, claims=_REMOVED_COLLECTIVE_TERMS),
    Rule(
        cause=Cause.CHECKPOINT_REGATHERS,
        check=checkpoint_regathers,
        claims=_REMOVED_COLLECTIVE_TERMS,
        # recomputation requests its gather at the moment it needs it
        explains=(Cause.NO_PREFETCH,),
    ),
    Rule(cause=Cause.LAST_UNIT_REGATHERED, check=last_unit_regathered, claims=_REMOVED_COLLECTIVE_TERMS),
    Rule(
        cause=Cause.NEEDLESS_RESHARD_AFTER_FORWARD,
        check=needless_reshard_after_forward,
        claims=_REMOVED_COLLECTIVE_TERMS,
    ),
)


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


def transfer_rules(expected_bus_bytes_per_s: float | None = None) -> tuple[Rule, ...]:
    """Return the rules about transfers; low_bus_bandwidth compares with the expected bandwidth if given."""
    bandwidth = check_against(expected_bus_bytes_per_s) if expected_bus_bytes_per_s else low_bus_bandwidth
    return (
        Rule(
            cause=Cause.NO_PREFETCH,
            check=no_prefetch,
            claims=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
            explains=(_BACKWARD_REGATHERS,),
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
            claims=_TRANSFER_AND_IDLE_TERMS,
            explains=(_BACKWARD_REGATHERS,),
        ),
        Rule(
            cause=Cause.LOW_BUS_BANDWIDTH,
            check=bandwidth,
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


#: Also runs if only memory is analyzed.
ALLOCATOR_RETRIES_RULE = Rule(
    cause=Cause.ALLOCATOR_RETRIES,
    check=allocator_retries,
    claims=("idle_ns", "exposed_transfer_ns"),
)
HOST_RULES: tuple[Rule, ...] = (
    ALLOCATOR_RETRIES_RULE,
    Rule(
        cause=Cause.BLOCKING_SYNC,
        check=blocking_sync,
        claims=("idle_ns", "exposed_transfer_ns"),
    ),
    Rule(cause=Cause.DATA_LOADER, check=data_loader, claims=("idle_ns", "exposed_transfer_ns")),
    Rule(
        cause=Cause.OFFLOAD_ON_CRITICAL_PATH,
        check=offload_on_critical_path,
        claims=("exposed_memcpy_ns", "idle_ns", "exposed_transfer_ns"),
    ),
    Rule(
        cause=Cause.CPU_BOUND_LAUNCH,
        check=cpu_bound_launch,
        claims=("idle_ns", "exposed_transfer_ns"),
        # while the device of one rank runs dry, the others wait for it
        other_rank_terms=("exposed_wait_ns",),
    ),
)


_COMPUTE_TERMS = ("compute_ns",)

DEVICE_RULES: tuple[Rule, ...] = (
    Rule(
        cause=Cause.COMM_SLOWS_COMPUTE,
        check=comm_slows_compute,
        claims=_COMPUTE_TERMS,
        taken_from="compute_beside_collectives_per_step",
    ),
    Rule(
        cause=Cause.COPY_OVERHEAD,
        check=copy_overhead,
        claims=("compute_ns", "exposed_memcpy_ns"),
    ),
    Rule(cause=Cause.LOST_COMPUTE_EFFICIENCY, check=lost_compute_efficiency, claims=_COMPUTE_TERMS),
)


MEMORY_RULES = (
    Rule(cause=Cause.OUT_OF_MEMORY, check=out_of_memory),
    Rule(cause=Cause.BUFFERS_DOMINATE, check=buffers_dominate),
    Rule(cause=Cause.FRAGMENTATION, check=fragmentation),
    Rule(cause=Cause.ACTIVATIONS_DOMINATE, check=activations_dominate),
    Rule(cause=Cause.LOGITS_DOMINATE, check=logits_dominate),
    Rule(cause=Cause.REPLICATED_STATE, check=replicated_state),
    Rule(cause=Cause.WRONG_STAGE, check=wrong_stage),
    Rule(cause=Cause.RETAINED_GRADIENTS, check=retained_gradients),
    Rule(cause=Cause.INIT_SPIKE, check=init_spike),
    Rule(cause=Cause.OUTSIDE_ALLOCATOR, check=outside_allocator),
    Rule(cause=Cause.ATTENTION_SCORES, check=attention_scores),
    Rule(cause=Cause.WEIGHT_COPIES, check=weight_copies),
    Rule(cause=Cause.STATES_DOMINATE, check=states_dominate),
)
