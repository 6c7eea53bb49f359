"""Define the fix of each planted cause: the same plan with the one change that a finding recommends.

The cost of a cause is the step time of the planted plan minus that of the fixed plan, both simulated.
"""

from collections.abc import Callable
from dataclasses import replace

from zprof.model.findings import Cause
from zprof.simulator.causes import plant
from zprof.simulator.plan import Plan


def plant_and_fix(plan: Plan, cause: str, strength: float = 1.0) -> Plan:
    """Return ``plant(plan, cause, strength)`` with its fix applied."""
    planted = plant(plan, cause, strength)
    apply_fix = FIXES.get(cause)
    return replace(apply_fix(plan, planted) if apply_fix else planted, cause="none", strength=0.0)


def _fix_speed(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, speed=plan.speed)


def _fix_delays(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, delays=plan.delays)


def _fix_units(plan: Plan, planted: Plan) -> Plan:
    return replace(
        planted,
        units=plan.units,
        units_per_block=plan.units_per_block,
        unit_elements=plan.unit_elements,
        compute=plan.compute,
    )


def _fix_prefetch(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, prefetch=max(1, plan.prefetch))


def _fix_limiter(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, gathering=replace(planted.gathering, limiter=plan.gathering.limiter))


def _fix_host(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, host=plan.host)


def _fix_allocator(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, allocator=plan.allocator)


def _fix_compute(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, compute=plan.compute)


def _fix_network(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, network=plan.network)


def _shard_within_hosts(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, shard=planted.ranks_per_host)


def _fix_precision(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, precision=plan.precision)


def _reduce_once(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, reduce_each=False)


def _keep_gathered(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, gathering=replace(planted.gathering, reshard_after_forward=False))


def _keep_last_unit(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, gathering=replace(planted.gathering, keep_last_unit=True))


def _gather_once(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, gathering=replace(planted.gathering, recompute_gathers=False))


def _fix_offload(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, offload=plan.offload)


def _fix_data(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, data_ns=plan.data_ns)


def _hide_optimizer_gather(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, hide_optimizer_gather=True)


def _fix_shapes(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, padding_ratio=plan.padding_ratio)


def _fix_windows(plan: Plan, planted: Plan) -> Plan:
    return replace(planted, windows=plan.windows)


FIXES: dict[str, Callable[[Plan, Plan], Plan]] = {
    Cause.STRAGGLER_RANK: _fix_speed,
    Cause.ROTATING_STRAGGLER: _fix_delays,
    Cause.LATENCY_BOUND_COLLECTIVES: _fix_units,
    Cause.UNITS_TOO_SMALL: _fix_units,
    Cause.SINGLE_UNIT: _fix_units,
    Cause.NO_PREFETCH: _fix_prefetch,
    Cause.RATE_LIMITED_PREFETCH: _fix_limiter,
    Cause.CPU_BOUND_LAUNCH: _fix_host,
    Cause.ALLOCATOR_RETRIES: _fix_allocator,
    Cause.COMM_SLOWS_COMPUTE: _fix_compute,
    Cause.COMPUTE_BLOCKS_COMM: _fix_compute,
    Cause.LOW_BUS_BANDWIDTH: _fix_network,
    Cause.SHARDING_SPANS_NODES: _shard_within_hosts,
    Cause.FP32_REDUCE: _fix_precision,
    Cause.FP32_GATHER: _fix_precision,
    Cause.ACCUMULATION_SYNCS: _reduce_once,
    Cause.ACCUMULATION_REGATHERS: _keep_gathered,
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: _keep_gathered,
    Cause.LAST_UNIT_REGATHERED: _keep_last_unit,
    Cause.CHECKPOINT_REGATHERS: _gather_once,
    Cause.OFFLOAD_ON_CRITICAL_PATH: _fix_offload,
    Cause.BLOCKING_SYNC: _fix_host,
    Cause.DATA_LOADER: _fix_data,
    Cause.UNHIDDEN_OPTIMIZER_GATHER: _hide_optimizer_gather,
    Cause.COPY_OVERHEAD: _fix_compute,
    Cause.UNEVEN_SHAPES: _fix_shapes,
    Cause.LOST_COMPUTE_EFFICIENCY: _fix_compute,
    Cause.MEASUREMENT_ARTIFACT: _fix_windows,
}
