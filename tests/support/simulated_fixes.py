"""The fix of each planted cause: the same plan with the one change that a finding recommends.

The cost of a cause is the step time of the planted plan minus that of the fixed plan, both simulated.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from zprof.model.findings import Cause
from zprof.simulator.causes import plant
from zprof.simulator.plan import SimulationPlan

_UNITS = ("units", "units_per_block", "unit_elements", "compute")
#: Fields of the plan that the fix sets back to what they were before the cause was planted.
RESTORED: Mapping[str, tuple[str, ...]] = {
    Cause.STRAGGLER_RANK: ("speed",),
    Cause.ROTATING_STRAGGLER: ("delays",),
    Cause.LATENCY_BOUND_COLLECTIVES: _UNITS,
    Cause.UNITS_TOO_SMALL: _UNITS,
    Cause.SINGLE_UNIT: _UNITS,
    Cause.CPU_BOUND_LAUNCH: ("host",),
    Cause.ALLOCATOR_RETRIES: ("allocator",),
    Cause.COMM_SLOWS_COMPUTE: ("compute",),
    Cause.COMPUTE_BLOCKS_COMM: ("compute",),
    Cause.LOW_BUS_BANDWIDTH: ("network",),
    Cause.FP32_REDUCE: ("precision",),
    Cause.FP32_GATHER: ("precision",),
    Cause.OFFLOAD_ON_CRITICAL_PATH: ("offload",),
    Cause.BLOCKING_SYNC: ("host",),
    Cause.DATA_LOADER: ("data_ns",),
    Cause.COPY_OVERHEAD: ("compute",),
    Cause.UNEVEN_SHAPES: ("padding_ratio",),
    Cause.LOST_COMPUTE_EFFICIENCY: ("compute",),
    Cause.MEASUREMENT_ARTIFACT: ("windows",),
}


def plant_and_fix(plan: SimulationPlan, cause: str, strength: float = 1.0) -> SimulationPlan:
    """Return ``plant(plan, cause, strength)`` with its fix applied."""
    planted = plant(plan, cause, strength)
    fixed = CHANGED[cause](plan, planted) if cause in CHANGED else planted
    restored = {name: getattr(plan, name) for name in RESTORED.get(cause, ())}
    return replace(fixed, **restored, cause="none", strength=0.0)


def _gather(**gathering: object) -> Callable[[SimulationPlan, SimulationPlan], SimulationPlan]:
    return lambda _, planted: replace(planted, gathering=replace(planted.gathering, **gathering))


def _fix_limiter(plan: SimulationPlan, planted: SimulationPlan) -> SimulationPlan:
    return replace(planted, gathering=replace(planted.gathering, limiter=plan.gathering.limiter))


#: Fixes that are another setting than the one before.
CHANGED: Mapping[str, Callable[[SimulationPlan, SimulationPlan], SimulationPlan]] = {
    Cause.NO_PREFETCH: lambda plan, planted: replace(planted, prefetch=max(1, plan.prefetch)),
    Cause.RATE_LIMITED_PREFETCH: _fix_limiter,
    Cause.SHARDING_SPANS_NODES: lambda _, planted: replace(planted, shard=planted.ranks_per_host),
    Cause.ACCUMULATION_SYNCS: lambda _, planted: replace(planted, reduce_each=False),
    Cause.ACCUMULATION_REGATHERS: _gather(reshard_after_forward=False),
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: _gather(reshard_after_forward=False),
    Cause.LAST_UNIT_REGATHERED: _gather(keep_last_unit=True),
    Cause.CHECKPOINT_REGATHERS: _gather(recompute_gathers=False),
    Cause.UNHIDDEN_OPTIMIZER_GATHER: lambda _, planted: replace(planted, hide_optimizer_gather=True),
}
