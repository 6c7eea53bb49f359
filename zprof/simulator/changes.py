"""How a plan is made worse, in one way each; ``strength`` 1 gives a clear effect."""

from dataclasses import replace

import numpy as np

from zprof.simulator.plan import DType, HostDelay, Limiter, Plan, Vendor, Window


def victim(plan: Plan) -> int:
    """The rank that suffers, where it is one."""
    return (1 + plan.seed) % plan.ranks


def tight(plan: Plan, share: float = 0.9) -> Plan:
    """A network on which a unit's gather takes ``share`` of the compute of its forward."""
    size = max(2, plan.shard_size)
    moved = plan.unit_elements * plan.precision.gather.size_bytes * (size - 1) / size
    left = max(1_000, share * plan.compute.forward_ns - plan.network.alpha_ns)
    return replace(plan, network=replace(plan.network, beta_bytes_per_s=moved * 1e9 / left))


def straggler(plan: Plan, strength: float) -> Plan:
    """One rank computes slower."""
    return replace(plan, speed={**plan.speed, victim(plan): 1 / (1 + 0.25 * strength)})


def rotating(plan: Plan, strength: float) -> Plan:
    """Another rank's host stalls in every step."""
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


def latency(plan: Plan, strength: float) -> Plan:
    """Small messages on a network of high latency."""
    network = replace(plan.network, alpha_ns=int(500_000 * strength))
    return replace(_split(plan, 4), stage=3, network=network)


def small_units(plan: Plan, strength: float) -> Plan:
    """Many small units: the parts of each block are wrapped, not the block."""
    network, parts = replace(plan.network, alpha_ns=150_000), max(2, round(16 * strength))
    return replace(_split(plan, parts), stage=3, network=network, units_per_block=parts)


def single_unit(plan: Plan, strength: float) -> Plan:
    """The whole model is one unit."""
    whole = tight(plan, min(5.0, 0.9 * strength))
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


def no_prefetch(plan: Plan, strength: float) -> Plan:
    """Each unit is gathered when it is needed."""
    return replace(tight(plan, min(5.0, 0.9 * strength)), stage=3, prefetch=0)


def rate_limited(plan: Plan, strength: float) -> Plan:
    """The host waits before each gather, and is slow to resume."""
    gathering = replace(plan.gathering, limiter=Limiter.HOST)
    host = replace(plan.host, resume_ns=int(235_000 * strength))
    return replace(plan, stage=3, prefetch=1, gathering=gathering, host=host)


def cpu_bound(plan: Plan, strength: float) -> Plan:
    """Kernels are short, and launching one takes longer.

    A device runs while the next launch goes on, so only what a launch is longer than a kernel is lost; a CPU
    rank has nothing beside its launches, and loses all of them.
    """
    times = 8
    compute = replace(
        plan.compute,
        forward_kernels=plan.compute.forward_kernels * times,
        backward_kernels=plan.compute.backward_kernels * times,
    )
    kernel_ns = (compute.forward_ns + compute.backward_ns) // max(
        1, compute.forward_kernels + compute.backward_kernels
    )
    hidden = 0 if plan.vendor is Vendor.GLOO else 1
    launch_ns = int(kernel_ns * (hidden + 0.5 * strength))
    return replace(plan, compute=compute, host=replace(plan.host, launch_ns=launch_ns))


def allocator(plan: Plan, strength: float) -> Plan:
    """Retries within steps."""
    return replace(plan, allocator=replace(plan.allocator, retries_per_step=max(1, round(4 * strength))))


def slow_compute(plan: Plan, strength: float) -> Plan:
    """Kernels are slower beside collectives."""
    return replace(tight(plan, 0.6), compute=replace(plan.compute, slowdown=1 + 0.6 * strength))


def blocked(plan: Plan, strength: float) -> Plan:
    """Collectives start behind queued kernels."""
    network = tight(plan, min(5.0, 0.9 * strength))
    return replace(network, compute=replace(plan.compute, blocks_collectives=True))


def low_bandwidth(plan: Plan, strength: float) -> Plan:
    """The network is slow."""
    return tight(plan, 2.5 * strength)


def spans_nodes(plan: Plan, strength: float) -> Plan:
    """Two hosts with a slow link between them."""
    slow = tight(plan, 2.0 * strength).network.beta_bytes_per_s
    network = replace(plan.network, inter_beta_bytes_per_s=slow, inter_alpha_ns=3 * plan.network.alpha_ns)
    return replace(plan, ranks_per_host=max(1, plan.ranks // 2), network=network)


def fp32_reduce(plan: Plan, strength: float) -> Plan:
    """Gradients travel in float32."""
    precision = replace(plan.precision, reduce=DType.FLOAT32)
    return replace(tight(plan, min(5.0, 0.9 * strength)), precision=precision)


def fp32_gather(plan: Plan, strength: float) -> Plan:
    """Parameters travel in float32."""
    precision = replace(plan.precision, gather=DType.FLOAT32)
    return replace(tight(plan, min(5.0, 0.9 * strength)), precision=precision)


def accumulation_syncs(plan: Plan, strength: float) -> Plan:
    """Each micro-batch reduces: data parallelism that accumulates without ``no_sync``."""
    return replace(tight(plan), stage=0, micro_batches=max(2, round(4 * strength)), reduce_each=True)


def accumulation_regathers(plan: Plan, strength: float) -> Plan:
    """Each micro-batch gathers."""
    return replace(tight(plan, 1.4), stage=3, micro_batches=max(2, round(4 * strength)))


def needless_reshard(plan: Plan, strength: float) -> Plan:
    """Units are dropped after forward and gathered again."""
    gathering = replace(plan.gathering, reshard_after_forward=True)
    return replace(tight(plan, min(5.0, 1.5 * strength)), stage=3, gathering=gathering)


def last_unit(plan: Plan, strength: float) -> Plan:
    """The last unit is dropped and gathered again at once.

    The host reads the loss before the backward, as many do: a host that runs ahead of the device would
    launch this gather so early that it hides under the forward of the unit itself.  The other gathers fit.
    """
    gathering = replace(plan.gathering, keep_last_unit=False)
    host = replace(plan.host, reads_loss=plan.vendor is not Vendor.GLOO)
    return replace(tight(plan, min(0.95, 0.9 * strength)), stage=3, gathering=gathering, host=host)


def checkpoint(plan: Plan, strength: float) -> Plan:
    """Recomputation gathers once more."""
    gathering = replace(plan.gathering, recompute=True, recompute_gathers=True)
    return replace(tight(plan, min(5.0, 1.2 * strength)), stage=3, gathering=gathering)


def offload(plan: Plan, strength: float) -> Plan:
    """Shards live in host memory, behind a slow link, and the optimizer runs on the CPU."""
    offload = replace(
        plan.offload,
        enabled=True,
        optimizer_ns=int(plan.offload.optimizer_ns * strength),
        pcie_bytes_per_s=plan.offload.pcie_bytes_per_s / strength,
    )
    return replace(plan, stage=3, offload=offload)


def syncs(plan: Plan, strength: float) -> Plan:
    """The host reads scalars back after each unit; without a device it waits for all that is in flight."""
    host = replace(plan.host, syncs_per_unit=max(1, round(2 * strength)), resume_ns=150_000)
    return replace(plan, host=host)


def data(plan: Plan, strength: float) -> Plan:
    """Each step begins with a wait for data."""
    return replace(plan, data_ns=int(15_000_000 * strength))


def unhidden(plan: Plan, strength: float) -> Plan:
    """New parameters are gathered with nothing beside it."""
    network = tight(plan, min(5.0, 0.9 * strength))
    return replace(network, stage=plan.stage if plan.stage in (1, 2) else 2, hide_optimizer_gather=False)


def copies(plan: Plan, strength: float) -> Plan:
    """Copies around gathers take long."""
    copy_ns = int(0.3 * plan.compute.forward_ns * strength)
    return replace(plan, stage=3, compute=replace(plan.compute, copy_ns=copy_ns))


def uneven(plan: Plan, strength: float) -> Plan:
    """Shards are padded."""
    return replace(plan, padding_ratio=0.15 * strength)


def lost_efficiency(plan: Plan, strength: float) -> Plan:
    """All kernels take longer."""
    return replace(plan, compute=replace(plan.compute, factor=plan.compute.factor * (1 + 0.3 * strength)))


def artifact(plan: Plan, strength: float) -> Plan:
    """Profilers take differently long to start, as where a device's tracing is set up: tens of ms apart."""
    random = np.random.Generator(np.random.PCG64([plan.seed, 9]))
    opening = random.integers(0, int(60_000_000 * strength), size=plan.ranks)
    windows = {rank: Window(opening_ns=int(opening[rank])) for rank in range(plan.ranks)}
    return replace(plan, windows=windows)


def as_it_is(plan: Plan, strength: float) -> Plan:
    """No change."""
    return plan
