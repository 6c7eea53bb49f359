"""The fix of each planted cause: the same plan with the one change that a finding recommends.

The cost of a cause is the step time of the planted plan minus that of the fixed plan, both simulated.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from zprof.simulator.causes import plant
from zprof.simulator.plan import SimulationPlan

_UNITS = ("units", "units_per_block", "unit_elements", "compute")
#: Fields of the plan that the fix sets back to what they were before the cause was planted.
RESTORED: Mapping[str, tuple[str, ...]] = {
    "straggler_rank": ("speed",),
    "rotating_straggler": ("delays",),
    "latency_bound_collectives": _UNITS,
    "units_too_small": _UNITS,
    "single_unit": _UNITS,
    "cpu_bound_launch": ("host",),
    "allocator_retries": ("allocator",),
    "comm_slows_compute": ("compute",),
    "compute_blocks_comm": ("compute",),
    "low_bus_bandwidth": ("network",),
    "fp32_reduce": ("precision",),
    "fp32_gather": ("precision",),
    "offload_on_critical_path": ("offload",),
    "blocking_sync": ("host",),
    "data_loader": ("data_ns",),
    "copy_overhead": ("compute",),
    "uneven_shapes": ("padding_ratio",),
    "lost_compute_efficiency": ("compute",),
    "measurement_artifact": ("windows",),
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
    "no_prefetch": lambda plan, planted: replace(planted, prefetch=max(1, plan.prefetch)),
    "rate_limited_prefetch": _fix_limiter,
    "sharding_spans_nodes": lambda _, planted: replace(planted, shard=planted.ranks_per_host),
    "accumulation_syncs": lambda _, planted: replace(planted, reduce_each=False),
    "accumulation_regathers": _gather(reshard_after_forward=False),
    "needless_reshard_after_forward": _gather(reshard_after_forward=False),
    "last_unit_regathered": _gather(keep_last_unit=True),
    "checkpoint_regathers": _gather(recompute_gathers=False),
    "unhidden_optimizer_gather": lambda _, planted: replace(planted, hide_optimizer_gather=True),
}
