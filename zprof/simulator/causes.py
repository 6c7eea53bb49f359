"""Plant the causes of slow steps in a plan.

``strength`` 1 gives a clear effect, 0.5 half of it, 2 twice as much; causes that are only present or absent
ignore it.  Causes that matter only if communication barely fits behind compute also slow down the network
(``tighten_network``): compare them with the healthy plan "tight".
"""

from collections.abc import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.findings import read_index
from zprof.simulator.plan import DType, HostDelay, Limiter, PartialRecording, SimulationPlan, Vendor

#: Healthy jobs: as it is, and with communication that barely fits behind compute.
NONE, TIGHT = "none", "tight"


def choose_affected_rank(plan: SimulationPlan) -> int:
    """Return the affected rank of a cause that affects a single rank."""
    return (1 + plan.seed) % plan.ranks


def tighten_network(plan: SimulationPlan, share: float = 0.9) -> SimulationPlan:
    """Return the plan with a network on which a unit's gather takes ``share`` of its forward compute."""
    size = max(2, plan.shard_size)
    moved_bytes = plan.unit_elements * plan.precision.gather.size_bytes * (size - 1) / size
    transfer_ns = max(1_000, share * plan.compute.forward_ns - plan.network.alpha_ns)
    return replace(plan, network=replace(plan.network, beta_bytes_per_s=moved_bytes * 1e9 / transfer_ns))


def plant_straggler(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Slow down one rank's compute."""
    return replace(plan, speed={**plan.speed, choose_affected_rank(plan): 1 / (1 + 0.25 * strength)})


def plant_rotating_straggler(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Stall another rank's host in each step."""
    delay = HostDelay(rank=choose_affected_rank(plan), ns=int(8_000_000 * strength), rotating=True)
    return replace(plan, delays=(*plan.delays, delay))


def _split_units(plan: SimulationPlan, parts: int) -> SimulationPlan:
    """Split the same model into ``parts`` times as many units."""
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


def plant_latency(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Send small messages over a network with high latency."""
    network = replace(plan.network, alpha_ns=int(500_000 * strength))
    return replace(_split_units(plan, 4), stage=3, network=network)


def plant_small_units(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Wrap the parts of each block instead of the block, for many small units."""
    network, parts = replace(plan.network, alpha_ns=150_000), max(2, round(16 * strength))
    return replace(_split_units(plan, parts), stage=3, network=network, units_per_block=parts)


def plant_single_unit(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Make the entire model one unit."""
    tightened = tighten_network(plan, min(5.0, 0.9 * strength))
    compute = replace(
        plan.compute,
        forward_ns=plan.compute.forward_ns * plan.units,
        backward_ns=plan.compute.backward_ns * plan.units,
        forward_kernels=plan.compute.forward_kernels * plan.units,
        backward_kernels=plan.compute.backward_kernels * plan.units,
        copy_ns=plan.compute.copy_ns * plan.units,
    )
    elements = plan.unit_elements * plan.units
    return replace(tightened, stage=3, units=1, unit_elements=elements, compute=compute)


def plant_late_gathers(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Gather each unit only when it is needed."""
    return replace(tighten_network(plan, min(5.0, 0.9 * strength)), stage=3, prefetch=0)


def plant_rate_limiter(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Make the host wait before each gather, and resume slowly."""
    gathering = replace(plan.gathering, limiter=Limiter.HOST)
    host = replace(plan.host, resume_ns=int(235_000 * strength))
    return replace(plan, stage=3, prefetch=1, gathering=gathering, host=host)


def plant_cpu_bound_launch(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Make kernels shorter than their launch overhead.

    A device runs during the next launch, so only the time by which a launch exceeds a kernel is lost. A CPU
    rank does not compute during its launches, and loses all of their time.
    """
    factor = 8
    compute = replace(
        plan.compute,
        forward_kernels=plan.compute.forward_kernels * factor,
        backward_kernels=plan.compute.backward_kernels * factor,
    )
    kernel_ns = (compute.forward_ns + compute.backward_ns) // max(
        1, compute.forward_kernels + compute.backward_kernels
    )
    hidden_launches = 0 if plan.vendor is Vendor.GLOO else 1
    launch_ns = int(kernel_ns * (hidden_launches + 0.5 * strength))
    return replace(plan, compute=compute, host=replace(plan.host, launch_ns=launch_ns))


def plant_allocator_retries(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Add allocator retries within steps."""
    return replace(plan, allocator=replace(plan.allocator, retries_per_step=max(1, round(4 * strength))))


def plant_contention(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Slow down kernels that run in parallel with collectives."""
    return replace(tighten_network(plan, 0.6), compute=replace(plan.compute, slowdown=1 + 0.6 * strength))


def plant_blocked_collectives(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Make collectives wait for kernels queued before them."""
    network = tighten_network(plan, min(5.0, 0.9 * strength))
    return replace(network, compute=replace(plan.compute, blocks_collectives=True))


def plant_low_bandwidth(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Slow down the network."""
    return tighten_network(plan, 2.5 * strength)


def plant_node_span(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Spread the ranks over two hosts with a slow link between them."""
    slow = tighten_network(plan, 2.0 * strength).network.beta_bytes_per_s
    network = replace(plan.network, inter_beta_bytes_per_s=slow, inter_alpha_ns=3 * plan.network.alpha_ns)
    return replace(plan, ranks_per_host=max(1, plan.ranks // 2), network=network)


def plant_fp32_reduce(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Reduce gradients in float32."""
    precision = replace(plan.precision, reduce=DType.FLOAT32)
    return replace(tighten_network(plan, min(5.0, 0.9 * strength)), precision=precision)


def plant_fp32_gather(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Gather parameters in float32."""
    precision = replace(plan.precision, gather=DType.FLOAT32)
    return replace(tighten_network(plan, min(5.0, 0.9 * strength)), precision=precision)


def plant_accumulation_syncs(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Reduce in each micro-batch, as data parallelism that accumulates without ``no_sync``."""
    return replace(
        tighten_network(plan), stage=0, micro_batches=max(2, round(4 * strength)), reduce_each=True
    )


def plant_accumulation_regathers(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Gather in each micro-batch."""
    return replace(tighten_network(plan, 1.4), stage=3, micro_batches=max(2, round(4 * strength)))


def plant_needless_reshard(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Release units after the forward and gather them again."""
    gathering = replace(plan.gathering, reshard_after_forward=True)
    return replace(tighten_network(plan, min(5.0, 1.5 * strength)), stage=3, gathering=gathering)


def plant_last_unit_regather(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Release the last unit and gather it again immediately.

    The host reads the loss before the backward, as many programs do.  A host that runs ahead of the device
    would launch this gather early enough to overlap with the unit's own forward.  The other gathers fit.
    """
    gathering = replace(plan.gathering, keep_last_unit=False)
    host = replace(plan.host, reads_loss=plan.vendor is not Vendor.GLOO)
    return replace(tighten_network(plan, min(0.95, 0.9 * strength)), stage=3, gathering=gathering, host=host)


def plant_checkpoint_regathers(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Gather parameters again for the recomputation."""
    gathering = replace(plan.gathering, recompute=True, recompute_gathers=True)
    return replace(tighten_network(plan, min(5.0, 1.2 * strength)), stage=3, gathering=gathering)


def plant_offload(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Keep shards in host memory, over a slow link, and run the optimizer on the CPU."""
    offload = replace(
        plan.offload,
        enabled=True,
        optimizer_ns=int(plan.offload.optimizer_ns * strength),
        pcie_bytes_per_s=plan.offload.pcie_bytes_per_s / strength,
    )
    return replace(plan, stage=3, offload=offload)


def plant_blocking_syncs(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Read scalars back to the host after each unit; without a device, wait for all work in flight."""
    host = replace(plan.host, syncs_per_unit=max(1, round(2 * strength)), resume_ns=150_000)
    return replace(plan, host=host)


def plant_data_loader(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Start each step with a wait for data."""
    return replace(plan, data_ns=int(15_000_000 * strength))


def plant_exposed_optimizer_gather(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Gather new parameters without any overlap."""
    network = tighten_network(plan, min(5.0, 0.9 * strength))
    return replace(network, stage=plan.stage if plan.stage in (1, 2) else 2, hide_optimizer_gather=False)


def plant_copy_overhead(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Make copies around gathers slow."""
    copy_ns = int(0.3 * plan.compute.forward_ns * strength)
    return replace(plan, stage=3, compute=replace(plan.compute, copy_ns=copy_ns))


def plant_uneven_shapes(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Pad the shards."""
    return replace(plan, padding_ratio=0.15 * strength)


def plant_lost_efficiency(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Slow down all kernels."""
    return replace(plan, compute=replace(plan.compute, factor=plan.compute.factor * (1 + 0.3 * strength)))


def plant_measurement_artifact(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Start the ranks' profilers tens of ms apart, as setting up device tracing does."""
    random = np.random.Generator(np.random.PCG64([plan.seed, 9]))
    start_ns = random.integers(0, int(60_000_000 * strength), size=plan.ranks)
    windows = {rank: PartialRecording(opening_ns=int(start_ns[rank])) for rank in range(plan.ranks)}
    return replace(plan, windows=windows)


def keep_plan(plan: SimulationPlan, strength: float) -> SimulationPlan:
    """Return the plan unchanged."""
    return plan


def plant(plan: SimulationPlan, cause: str, strength: float = 1.0) -> SimulationPlan:
    """Return the plan with a cause planted.

    Raises:
        BadInput: the strength is not above 0, or exceeds 100.
    """
    if not 0 < strength <= 100:
        raise BadInput(
            f"strength must be above 0 and at most 100, not {strength}", hint="1 gives a clear effect"
        )
    planted = PLANTS[cause](plan, strength)
    return replace(planted, cause=str(cause), strength=0.0 if cause == NONE else strength)


#: How each cause is planted, by its id; what it means: docs/findings.
_BY_ID: Mapping[str, Callable[[SimulationPlan, float], SimulationPlan]] = {
    "ZP101": plant_measurement_artifact,
    "ZP301": plant_straggler,
    "ZP302": plant_rotating_straggler,
    "ZP401": plant_late_gathers,
    "ZP402": plant_low_bandwidth,
    "ZP403": plant_latency,
    "ZP404": plant_small_units,
    "ZP405": plant_single_unit,
    "ZP406": plant_rate_limiter,
    "ZP407": plant_blocked_collectives,
    "ZP408": plant_node_span,
    "ZP409": plant_fp32_reduce,
    "ZP410": plant_fp32_gather,
    "ZP411": plant_accumulation_syncs,
    "ZP412": plant_accumulation_regathers,
    "ZP413": plant_needless_reshard,
    "ZP414": plant_last_unit_regather,
    "ZP415": plant_checkpoint_regathers,
    "ZP416": plant_exposed_optimizer_gather,
    "ZP417": plant_uneven_shapes,
    "ZP501": plant_allocator_retries,
    "ZP502": plant_cpu_bound_launch,
    "ZP503": plant_blocking_syncs,
    "ZP504": plant_data_loader,
    "ZP505": plant_offload,
    "ZP506": plant_contention,
    "ZP507": plant_copy_overhead,
    "ZP508": plant_lost_efficiency,
}
#: By the name of the cause.
PLANTS: Mapping[str, Callable[[SimulationPlan, float], SimulationPlan]] = {
    NONE: keep_plan,
    TIGHT: lambda plan, _: tighten_network(plan),
    **{entry.name: _BY_ID[entry.id] for entry in read_index() if entry.id in _BY_ID},
}
