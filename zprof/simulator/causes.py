"""Causes of a slow step, planted: each is a plan made worse in one way.

``strength`` 1 gives a clear effect, 0.5 half of it, 2 twice as much, where the cause has a size at all.
Names are those of reports.  What only matters once communication hardly fits under the compute comes with
a network that makes it so (``_tight``): the healthy plan to compare with is then the one named "tight".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from zprof.model.errors import BadInput
from zprof.simulator.plan import DType, HostDelay, Limiter, Plan, Window


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


def victim(plan: Plan) -> int:
    """The rank that suffers, where it is one."""
    return (1 + plan.seed) % plan.ranks


def _tight(plan: Plan, share: float = 0.9) -> Plan:
    """A network on which a unit's gather takes ``share`` of the compute of its forward."""
    size = max(2, plan.shard_size)
    moved = plan.unit_elements * plan.precision.gather.size_bytes * (size - 1) / size
    left = max(1_000, share * plan.compute.forward_ns - plan.network.alpha_ns)
    return replace(plan, network=replace(plan.network, beta_bytes_per_s=moved * 1e9 / left))


def _straggler(plan: Plan, strength: float) -> Plan:
    return replace(plan, speed={**plan.speed, victim(plan): 1 / (1 + 0.25 * strength)})


def _rotating(plan: Plan, strength: float) -> Plan:
    delay = HostDelay(rank=victim(plan), ns=int(8_000_000 * strength), rotating=True)
    return replace(plan, delays=(*plan.delays, delay))


def _split(plan: Plan, parts: int) -> Plan:
    """The same model in ``parts`` times as many units."""
    compute = replace(
        plan.compute,
        forward_ns=plan.compute.forward_ns // parts,
        backward_ns=plan.compute.backward_ns // parts,
        forward_kernels=max(1, plan.compute.forward_kernels // parts),
        backward_kernels=max(1, plan.compute.backward_kernels // parts),
        copy_ns=max(2_000, plan.compute.copy_ns // parts),
    )
    elements = max(1, plan.unit_elements // parts)
    return replace(plan, units=plan.units * parts, unit_elements=elements, compute=compute)


def _latency(plan: Plan, strength: float) -> Plan:
    network = replace(plan.network, alpha_ns=int(500_000 * strength))
    return replace(_split(plan, 4), stage=3, network=network)


def _small_units(plan: Plan, strength: float) -> Plan:
    network = replace(plan.network, alpha_ns=150_000)
    return replace(_split(plan, max(2, round(16 * strength))), stage=3, network=network)


def _single_unit(plan: Plan, strength: float) -> Plan:
    whole = _tight(plan, min(5.0, 0.9 * strength))
    compute = replace(
        plan.compute,
        forward_ns=plan.compute.forward_ns * plan.units,
        backward_ns=plan.compute.backward_ns * plan.units,
        forward_kernels=plan.compute.forward_kernels * plan.units,
        backward_kernels=plan.compute.backward_kernels * plan.units,
        copy_ns=plan.compute.copy_ns * plan.units,
    )
    elements = plan.unit_elements * plan.units
    return replace(whole, stage=3, units=1, unit_elements=elements, compute=compute)


def _no_prefetch(plan: Plan, strength: float) -> Plan:
    return replace(_tight(plan, min(5.0, 0.9 * strength)), stage=3, prefetch=0)


def _rate_limited(plan: Plan, strength: float) -> Plan:
    gathering = replace(plan.gathering, limiter=Limiter.HOST)
    host = replace(plan.host, resume_ns=int(235_000 * strength))
    return replace(plan, stage=3, prefetch=1, gathering=gathering, host=host)


def _cpu_bound(plan: Plan, strength: float) -> Plan:
    times = 8
    compute = replace(
        plan.compute,
        forward_kernels=plan.compute.forward_kernels * times,
        backward_kernels=plan.compute.backward_kernels * times,
    )
    kernel_ns = (compute.forward_ns + compute.backward_ns) // max(
        1, compute.forward_kernels + compute.backward_kernels
    )
    return replace(
        plan, compute=compute, host=replace(plan.host, launch_ns=int(kernel_ns * (1 + 0.5 * strength)))
    )


def _allocator(plan: Plan, strength: float) -> Plan:
    return replace(plan, allocator=replace(plan.allocator, retries_per_step=max(1, round(4 * strength))))


def _slow_compute(plan: Plan, strength: float) -> Plan:
    return replace(_tight(plan, 0.6), compute=replace(plan.compute, slowdown=1 + 0.6 * strength))


def _blocked(plan: Plan, strength: float) -> Plan:
    tight = _tight(plan, min(5.0, 0.9 * strength))
    return replace(tight, compute=replace(plan.compute, blocks_collectives=True))


def _low_bandwidth(plan: Plan, strength: float) -> Plan:
    return _tight(plan, 2.5 * strength)


def _spans_nodes(plan: Plan, strength: float) -> Plan:
    slow = _tight(plan, 2.0 * strength).network.beta_bytes_per_s
    network = replace(plan.network, inter_beta_bytes_per_s=slow, inter_alpha_ns=3 * plan.network.alpha_ns)
    return replace(plan, ranks_per_host=max(1, plan.ranks // 2), network=network)


def _fp32_reduce(plan: Plan, strength: float) -> Plan:
    precision = replace(plan.precision, reduce=DType.FLOAT32)
    return replace(_tight(plan, min(5.0, 0.9 * strength)), precision=precision)


def _fp32_gather(plan: Plan, strength: float) -> Plan:
    precision = replace(plan.precision, gather=DType.FLOAT32)
    return replace(_tight(plan, min(5.0, 0.9 * strength)), precision=precision)


def _accumulation_syncs(plan: Plan, strength: float) -> Plan:
    return replace(_tight(plan), micro_batches=max(2, round(4 * strength)), reduce_each=True)


def _accumulation_regathers(plan: Plan, strength: float) -> Plan:
    return replace(_tight(plan, 1.4), stage=3, micro_batches=max(2, round(4 * strength)))


def _needless_reshard(plan: Plan, strength: float) -> Plan:
    gathering = replace(plan.gathering, reshard_after_forward=True)
    return replace(_tight(plan, min(5.0, 1.5 * strength)), stage=3, gathering=gathering)


def _last_unit(plan: Plan, strength: float) -> Plan:
    gathering = replace(plan.gathering, keep_last_unit=False)
    return replace(_tight(plan, min(5.0, 0.9 * strength)), stage=3, gathering=gathering)


def _checkpoint(plan: Plan, strength: float) -> Plan:
    gathering = replace(plan.gathering, recompute=True, recompute_gathers=True)
    return replace(_tight(plan, min(5.0, 1.2 * strength)), stage=3, gathering=gathering)


def _offload(plan: Plan, strength: float) -> Plan:
    optimizer_ns = int(plan.offload.optimizer_ns * strength)
    return replace(plan, stage=3, offload=replace(plan.offload, enabled=True, optimizer_ns=optimizer_ns))


def _syncs(plan: Plan, strength: float) -> Plan:
    host = replace(plan.host, syncs_per_unit=max(1, round(2 * strength)), resume_ns=150_000)
    return replace(plan, host=host)


def _data(plan: Plan, strength: float) -> Plan:
    return replace(plan, data_ns=int(15_000_000 * strength))


def _unhidden(plan: Plan, strength: float) -> Plan:
    tight = _tight(plan, min(5.0, 0.9 * strength))
    return replace(tight, stage=plan.stage if plan.stage in (1, 2) else 2, hide_optimizer_gather=False)


def _copies(plan: Plan, strength: float) -> Plan:
    copy_ns = int(0.3 * plan.compute.forward_ns * strength)
    return replace(plan, stage=3, compute=replace(plan.compute, copy_ns=copy_ns))


def _uneven(plan: Plan, strength: float) -> Plan:
    return replace(plan, padding_ratio=0.15 * strength)


def _lost_efficiency(plan: Plan, strength: float) -> Plan:
    return replace(plan, compute=replace(plan.compute, factor=plan.compute.factor * (1 + 0.3 * strength)))


def _artifact(plan: Plan, strength: float) -> Plan:
    random = np.random.Generator(np.random.PCG64([plan.seed, 9]))
    late = random.integers(0, int(6_000_000 * strength), size=plan.ranks)
    windows = {rank: Window(opens_late_ns=int(late[rank])) for rank in range(plan.ranks)}
    return replace(plan, windows=windows)


def _as_it_is(plan: Plan, strength: float) -> Plan:
    return plan


PRESETS: dict[Cause, Preset] = {
    Cause.NONE: Preset(says="nothing is wrong", change=_as_it_is),
    Cause.TIGHT: Preset(
        says="nothing is wrong, but communication only just fits", change=lambda plan, _: _tight(plan)
    ),
    Cause.STRAGGLER_RANK: Preset(says="one rank computes slower", change=_straggler),
    Cause.ROTATING_STRAGGLER: Preset(says="another rank's host stalls in every step", change=_rotating),
    Cause.LATENCY_BOUND_COLLECTIVES: Preset(
        says="small messages on a network of high latency", change=_latency
    ),
    Cause.UNITS_TOO_SMALL: Preset(says="many small wrapped units", change=_small_units),
    Cause.SINGLE_UNIT: Preset(says="the whole model is one wrapped unit", change=_single_unit),
    Cause.NO_PREFETCH: Preset(says="each unit is gathered when it is needed", change=_no_prefetch),
    Cause.RATE_LIMITED_PREFETCH: Preset(says="the host waits before each gather", change=_rate_limited),
    Cause.CPU_BOUND_LAUNCH: Preset(says="the host launches slower than kernels run", change=_cpu_bound),
    Cause.ALLOCATOR_RETRIES: Preset(says="the allocator frees and allocates within steps", change=_allocator),
    Cause.COMM_SLOWS_COMPUTE: Preset(says="kernels are slower beside collectives", change=_slow_compute),
    Cause.COMPUTE_BLOCKS_COMM: Preset(says="collectives start behind queued kernels", change=_blocked),
    Cause.LOW_BUS_BANDWIDTH: Preset(says="the network is slow", change=_low_bandwidth),
    Cause.SHARDING_SPANS_NODES: Preset(says="shards lie on two hosts with a slow link", change=_spans_nodes),
    Cause.FP32_REDUCE: Preset(says="gradients are reduced in float32", change=_fp32_reduce),
    Cause.FP32_GATHER: Preset(says="parameters are gathered in float32", change=_fp32_gather),
    Cause.ACCUMULATION_SYNCS: Preset(says="each micro-batch reduces gradients", change=_accumulation_syncs),
    Cause.ACCUMULATION_REGATHERS: Preset(
        says="each micro-batch gathers parameters again", change=_accumulation_regathers
    ),
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: Preset(
        says="units are dropped after forward and gathered again", change=_needless_reshard
    ),
    Cause.LAST_UNIT_REGATHERED: Preset(
        says="the last unit is dropped and gathered again at once", change=_last_unit
    ),
    Cause.CHECKPOINT_REGATHERS: Preset(says="recomputation gathers once more", change=_checkpoint),
    Cause.OFFLOAD_ON_CRITICAL_PATH: Preset(says="the optimizer runs on the CPU", change=_offload),
    Cause.BLOCKING_SYNC: Preset(says="the host reads scalars back after each unit", change=_syncs),
    Cause.DATA_LOADER: Preset(says="each step begins with a wait for data", change=_data),
    Cause.UNHIDDEN_OPTIMIZER_GATHER: Preset(
        says="new parameters are gathered with nothing beside it", change=_unhidden
    ),
    Cause.COPY_OVERHEAD: Preset(says="copies around gathers take long", change=_copies),
    Cause.UNEVEN_SHAPES: Preset(says="shards are padded", change=_uneven),
    Cause.LOST_COMPUTE_EFFICIENCY: Preset(says="all kernels take longer", change=_lost_efficiency),
    Cause.MEASUREMENT_ARTIFACT: Preset(says="recordings open at different times", change=_artifact),
}
