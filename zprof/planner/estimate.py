"""Estimate one layout of a model on a machine: memory of the fullest device, step time, and what bounds
it."""

from zprof.model.layout import Layout
from zprof.model.machines import Hardware
from zprof.model.plan import Estimate
from zprof.model.transformer import Transformer
from zprof.planner.framework_memory import compute_reserve_bytes, judge_fit, plan_stage_memory
from zprof.planner.framework_step import plan_framework_step
from zprof.planner.stages import split_stages

_NS_PER_S = 1e9


def estimate_layout(model: Transformer, layout: Layout, hardware: Hardware) -> Estimate:
    """Return memory and step of a layout whose degrees are legal.

    Memory is that of the fullest pipeline stage, the step that of the slowest.
    """
    stages = split_stages(model, layout)
    memory = max((plan_stage_memory(parts, layout) for parts in stages), key=lambda each: each.peak_bytes)
    step = plan_framework_step(model, stages, layout, hardware)
    reserve = compute_reserve_bytes(memory.terms, layout.degrees.devices)
    wall_s = step.step.wall_ns / _NS_PER_S
    return Estimate(
        layout=layout,
        terms=memory.terms,
        peak_bytes=memory.peak_bytes,
        peak_at=memory.moment,
        reserve_bytes=reserve,
        left_bytes=hardware.memory_bytes - memory.peak_bytes - reserve,
        fit=judge_fit(memory.peak_bytes, reserve, hardware.memory_bytes),
        stage=memory.stage,
        step=step.step,
        launch_ns=step.launch_ns,
        tokens_per_s=layout.step_tokens / layout.degrees.devices / wall_s,
        model_flops_ratio=step.model_flops_ratio,
        bound=step.bound,
        links=step.links,
    )
