"""Causes of a slow step, planted: each is a plan made worse in one way.

``strength`` 1 gives a clear effect, 0.5 half of it, 2 twice as much, where the cause has a size at all.
Names are those of reports.  What only matters once communication hardly fits under the compute comes
with a network that makes it so (``changes.tight``): the healthy plan to compare with is then "tight".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from zprof.model.errors import BadInput
from zprof.simulator import changes
from zprof.simulator.plan import Plan


class Cause(StrEnum):
    """What can be planted.  NONE and TIGHT are healthy."""

    NONE = "none"
    TIGHT = "tight"
    STRAGGLER_RANK = "straggler_rank"
    ROTATING_STRAGGLER = "rotating_straggler"
    LATENCY_BOUND_COLLECTIVES = "latency_bound_collectives"
    UNITS_TOO_SMALL = "units_too_small"
    SINGLE_UNIT = "single_unit"
    NO_PREFETCH = "no_prefetch"
    RATE_LIMITED_PREFETCH = "rate_limited_prefetch"
    CPU_BOUND_LAUNCH = "cpu_bound_launch"
    ALLOCATOR_RETRIES = "allocator_retries"
    COMM_SLOWS_COMPUTE = "comm_slows_compute"
    COMPUTE_BLOCKS_COMM = "compute_blocks_comm"
    LOW_BUS_BANDWIDTH = "low_bus_bandwidth"
    SHARDING_SPANS_NODES = "sharding_spans_nodes"
    FP32_REDUCE = "fp32_reduce"
    FP32_GATHER = "fp32_gather"
    ACCUMULATION_SYNCS = "accumulation_syncs"
    ACCUMULATION_REGATHERS = "accumulation_regathers"
    NEEDLESS_RESHARD_AFTER_FORWARD = "needless_reshard_after_forward"
    LAST_UNIT_REGATHERED = "last_unit_regathered"
    CHECKPOINT_REGATHERS = "checkpoint_regathers"
    OFFLOAD_ON_CRITICAL_PATH = "offload_on_critical_path"
    BLOCKING_SYNC = "blocking_sync"
    DATA_LOADER = "data_loader"
    UNHIDDEN_OPTIMIZER_GATHER = "unhidden_optimizer_gather"
    COPY_OVERHEAD = "copy_overhead"
    UNEVEN_SHAPES = "uneven_shapes"
    LOST_COMPUTE_EFFICIENCY = "lost_compute_efficiency"
    MEASUREMENT_ARTIFACT = "measurement_artifact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How a cause is planted.  ``says``: what that means, in a line."""

    says: str
    change: Callable[[Plan, float], Plan]


def plant(plan: Plan, cause: Cause, strength: float = 1.0) -> Plan:
    """The plan with a cause in it.

    Raises:
        BadInput: the strength is not above 0.
    """
    if not 0 < strength <= 100:
        raise BadInput(f"strength: above 0, at most 100, not {strength}", hint="1 gives a clear effect")
    planted = PRESETS[cause].change(plan, strength)
    return replace(planted, cause=str(cause), strength=0.0 if cause is Cause.NONE else strength)


PRESETS: dict[Cause, Preset] = {
    Cause.NONE: Preset(says="nothing is wrong", change=changes.as_it_is),
    Cause.TIGHT: Preset(
        says="nothing is wrong, but communication only just fits", change=lambda plan, _: changes.tight(plan)
    ),
    Cause.STRAGGLER_RANK: Preset(says="one rank computes slower", change=changes.straggler),
    Cause.ROTATING_STRAGGLER: Preset(
        says="another rank's host stalls in every step", change=changes.rotating
    ),
    Cause.LATENCY_BOUND_COLLECTIVES: Preset(
        says="small messages on a network of high latency", change=changes.latency
    ),
    Cause.UNITS_TOO_SMALL: Preset(says="many small wrapped units", change=changes.small_units),
    Cause.SINGLE_UNIT: Preset(says="the whole model is one wrapped unit", change=changes.single_unit),
    Cause.NO_PREFETCH: Preset(says="each unit is gathered when it is needed", change=changes.no_prefetch),
    Cause.RATE_LIMITED_PREFETCH: Preset(
        says="the host waits before each gather", change=changes.rate_limited
    ),
    Cause.CPU_BOUND_LAUNCH: Preset(
        says="the host launches slower than kernels run", change=changes.cpu_bound
    ),
    Cause.ALLOCATOR_RETRIES: Preset(
        says="the allocator frees and allocates within steps", change=changes.allocator
    ),
    Cause.COMM_SLOWS_COMPUTE: Preset(
        says="kernels are slower beside collectives", change=changes.slow_compute
    ),
    Cause.COMPUTE_BLOCKS_COMM: Preset(says="collectives start behind queued kernels", change=changes.blocked),
    Cause.LOW_BUS_BANDWIDTH: Preset(says="the network is slow", change=changes.low_bandwidth),
    Cause.SHARDING_SPANS_NODES: Preset(
        says="shards lie on two hosts with a slow link", change=changes.spans_nodes
    ),
    Cause.FP32_REDUCE: Preset(says="gradients are reduced in float32", change=changes.fp32_reduce),
    Cause.FP32_GATHER: Preset(says="parameters are gathered in float32", change=changes.fp32_gather),
    Cause.ACCUMULATION_SYNCS: Preset(
        says="each micro-batch reduces gradients", change=changes.accumulation_syncs
    ),
    Cause.ACCUMULATION_REGATHERS: Preset(
        says="each micro-batch gathers parameters again", change=changes.accumulation_regathers
    ),
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: Preset(
        says="units are dropped after forward and gathered again", change=changes.needless_reshard
    ),
    Cause.LAST_UNIT_REGATHERED: Preset(
        says="the last unit is dropped and gathered again at once", change=changes.last_unit
    ),
    Cause.CHECKPOINT_REGATHERS: Preset(says="recomputation gathers once more", change=changes.checkpoint),
    Cause.OFFLOAD_ON_CRITICAL_PATH: Preset(says="the optimizer runs on the CPU", change=changes.offload),
    Cause.BLOCKING_SYNC: Preset(says="the host reads scalars back after each unit", change=changes.syncs),
    Cause.DATA_LOADER: Preset(says="each step begins with a wait for data", change=changes.data),
    Cause.UNHIDDEN_OPTIMIZER_GATHER: Preset(
        says="new parameters are gathered with nothing beside it", change=changes.unhidden
    ),
    Cause.COPY_OVERHEAD: Preset(says="copies around gathers take long", change=changes.copies),
    Cause.UNEVEN_SHAPES: Preset(says="shards are padded", change=changes.uneven),
    Cause.LOST_COMPUTE_EFFICIENCY: Preset(says="all kernels take longer", change=changes.lost_efficiency),
    Cause.MEASUREMENT_ARTIFACT: Preset(says="recordings open at different times", change=changes.artifact),
}
