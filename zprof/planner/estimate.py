"""Estimate one layout of a model on a machine: memory of the fullest device, step time, and what bounds
it."""

from collections.abc import Sequence

from zprof.model.layout import Layout
from zprof.model.machines import Hardware
from zprof.model.plan import Estimate, Fit
from zprof.model.transformer import Transformer
from zprof.planner.framework_memory import (
    StageMemory,
    compute_reserve_bytes,
    judge_fit,
    plan_stage_memory,
)
from zprof.planner.framework_step import plan_framework_step
from zprof.planner.stages import StageParts, split_stages

_NS_PER_S = 1e9


def estimate_layout(model: Transformer, layout: Layout, hardware: Hardware) -> Estimate:
    """Return memory and step of a layout whose degrees are legal.

    Memory is that of the fullest pipeline stage, the step that of the slowest.
    """
    stages = split_stages(model, layout)
    memory, reserve, fit = _plan_memory(stages, layout, hardware)
    step = plan_framework_step(model, stages, layout, hardware)
    wall_s = step.step.wall_ns / _NS_PER_S
    return Estimate(
        layout=layout,
        terms=memory.terms,
        peak_bytes=memory.peak_bytes,
        peak_at=memory.moment,
        reserve_bytes=reserve,
        left_bytes=hardware.memory_bytes - memory.peak_bytes - reserve,
        fit=fit,
        stage=memory.stage,
        step=step.step,
        launch_ns=step.launch_ns,
        tokens_per_s=layout.step_tokens / layout.degrees.devices / wall_s,
        model_flops_ratio=step.model_flops_ratio,
        bound=step.bound,
        links=step.links,
    )


def judge_layout(model: Transformer, layout: Layout, hardware: Hardware) -> Fit:
    """Return whether a layout fits, without its step."""
    return _plan_memory(split_stages(model, layout), layout, hardware)[2]


def _plan_memory(
    stages: Sequence[StageParts], layout: Layout, hardware: Hardware
) -> tuple[StageMemory, int, Fit]:
    """Return the memory of the fullest stage, the reserve of its device in bytes, and whether both fit."""
    memory = max((plan_stage_memory(parts, layout) for parts in stages), key=lambda each: each.peak_bytes)
    reserve = compute_reserve_bytes(memory.terms, layout.degrees.devices)
    return memory, reserve, judge_fit(memory.peak_bytes, reserve, hardware.memory_bytes)
