"""The cure of each planted cause: the same plan with the one thing changed that a finding tells to change.

What a cause costs is the step of the planted plan minus the step of the cured one, both simulated.
"""

from collections.abc import Callable
from dataclasses import replace

from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Plan


def cured(plan: Plan, cause: Cause, strength: float = 1.0) -> Plan:
    """What ``plant(plan, cause, strength)`` becomes when its fix is applied."""
    sick = plant(plan, cause, strength)
    cure = CURES.get(cause)
    return replace(cure(plan, sick) if cure else sick, cause="none", strength=0.0)


def _speed(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, speed=plan.speed)


def _delays(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, delays=plan.delays)


def _units(plan: Plan, sick: Plan) -> Plan:
    return replace(
        sick,
        units=plan.units,
        units_per_block=plan.units_per_block,
        unit_elements=plan.unit_elements,
        compute=plan.compute,
    )


def _prefetch(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, prefetch=max(1, plan.prefetch))


def _limiter(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, gathering=replace(sick.gathering, limiter=plan.gathering.limiter))


def _host(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, host=plan.host)


def _allocator(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, allocator=plan.allocator)


def _compute(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, compute=plan.compute)


def _network(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, network=plan.network)


def _within_hosts(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, shard=sick.ranks_per_host)


def _precision(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, precision=plan.precision)


def _reduce_once(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, reduce_each=False)


def _keep(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, gathering=replace(sick.gathering, reshard_after_forward=False))


def _keep_last(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, gathering=replace(sick.gathering, keep_last_unit=True))


def _gather_once(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, gathering=replace(sick.gathering, recompute_gathers=False))


def _offload(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, offload=plan.offload)


def _data(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, data_ns=plan.data_ns)


def _hide(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, hide_optimizer_gather=True)


def _shapes(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, padding_ratio=plan.padding_ratio)


def _windows(plan: Plan, sick: Plan) -> Plan:
    return replace(sick, windows=plan.windows)


CURES: dict[Cause, Callable[[Plan, Plan], Plan]] = {
    Cause.STRAGGLER_RANK: _speed,
    Cause.ROTATING_STRAGGLER: _delays,
    Cause.LATENCY_BOUND_COLLECTIVES: _units,
    Cause.UNITS_TOO_SMALL: _units,
    Cause.SINGLE_UNIT: _units,
    Cause.NO_PREFETCH: _prefetch,
    Cause.RATE_LIMITED_PREFETCH: _limiter,
    Cause.CPU_BOUND_LAUNCH: _host,
    Cause.ALLOCATOR_RETRIES: _allocator,
    Cause.COMM_SLOWS_COMPUTE: _compute,
    Cause.COMPUTE_BLOCKS_COMM: _compute,
    Cause.LOW_BUS_BANDWIDTH: _network,
    Cause.SHARDING_SPANS_NODES: _within_hosts,
    Cause.FP32_REDUCE: _precision,
    Cause.FP32_GATHER: _precision,
    Cause.ACCUMULATION_SYNCS: _reduce_once,
    Cause.ACCUMULATION_REGATHERS: _keep,
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: _keep,
    Cause.LAST_UNIT_REGATHERED: _keep_last,
    Cause.CHECKPOINT_REGATHERS: _gather_once,
    Cause.OFFLOAD_ON_CRITICAL_PATH: _offload,
    Cause.BLOCKING_SYNC: _host,
    Cause.DATA_LOADER: _data,
    Cause.UNHIDDEN_OPTIMIZER_GATHER: _hide,
    Cause.COPY_OVERHEAD: _compute,
    Cause.UNEVEN_SHAPES: _shapes,
    Cause.LOST_COMPUTE_EFFICIENCY: _compute,
    Cause.MEASUREMENT_ARTIFACT: _windows,
}
