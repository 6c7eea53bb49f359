"""Models, a machine and simple estimates for searches; the estimates need no part of the planner."""

from zprof.model.layout import Framework, Layout, ParallelDegrees, PipelineSchedule, Recompute
from zprof.model.machines import H100
from zprof.model.plan import Bound, Estimate, Fit, PlannedStep, Term
from zprof.model.tenants import Tenant
from zprof.model.transformer import Attention, Experts, LayerRun, Mlp, Transformer

MACHINE = H100
BASE = Layout(
    framework=Framework.FSDP2,
    degrees=ParallelDegrees(),
    stage=3,
    micro_batch=1,
    micro_batches=1,
    sequence=8192,
)
#: Activations that stay, by recomputation, relative to none; the share of compute that is added.
_KEPT = {Recompute.NONE: 1.0, Recompute.SELECTIVE: 0.5, Recompute.FULL: 0.05}
_ADDED = {Recompute.NONE: 0.0, Recompute.SELECTIVE: 0.15, Recompute.FULL: 0.33}


def make_model(
    layers: int, hidden: int, *, heads: int = 64, kv_heads: int = 8, experts: int = 0
) -> Transformer:
    feed_forward = Experts(experts=experts, active=2, width=hidden) if experts else Mlp(width=4 * hidden)
    attention = Attention(heads=heads, kv_heads=kv_heads, head_width=128)
    run = LayerRun(count=layers, mixer=attention, feed_forward=feed_forward)
    return Transformer(hidden=hidden, layers=(run,), vocabulary=128_000)


def estimate_simply(model: Transformer, layout: Layout, memory_bytes: int = MACHINE.memory_bytes) -> Estimate:
    """Estimate 16 bytes per parameter, 34 bytes per token and hidden element, and half of the peak."""
    degrees, width = layout.degrees, model.hidden
    layers = -(-model.layer_count // degrees.pipeline)
    elements = layers * 12 * width**2 // degrees.tensor
    sharded = degrees.shard if layout.stage else 1
    states = elements * (2 if layout.stage < 3 else 0) + 14 * elements // sharded
    kept = 1 if degrees.pipeline == 1 else min(degrees.pipeline, layout.micro_batches)
    tokens = layout.tokens // degrees.context
    activations = round(34 * tokens * width * layers * kept * _KEPT[layout.recompute] / degrees.tensor)
    peak = states + activations
    compute_ns = round(
        6 * elements * tokens * layout.micro_batches * (1 + _ADDED[layout.recompute]) / 500e12 * 1e9
    )
    chunks = degrees.virtual if layout.schedule is PipelineSchedule.INTERLEAVED else 1
    idle_ns = compute_ns * (degrees.pipeline - 1) // (layout.micro_batches * chunks)
    network_ns = (
        round(compute_ns * 0.02 * (degrees.tensor + degrees.context - 2))
        + elements * (1 + layout.reshard) // 100
    )
    wall_ns = compute_ns + idle_ns + network_ns + 1
    left = memory_bytes - peak - memory_bytes // 20
    fit = Fit.FITS if left >= 0 else Fit.TIGHT if peak <= memory_bytes else Fit.TOO_LARGE
    return Estimate(
        layout=layout,
        terms=(Term(tenant=Tenant.ACTIVATIONS, sub="", bytes=peak, assumption="made"),),
        peak_bytes=peak,
        peak_at="backward pass",
        reserve_bytes=memory_bytes // 20,
        left_bytes=left,
        fit=fit,
        stage=0,
        step=PlannedStep(
            wall_ns=wall_ns,
            compute_ns=compute_ns,
            exposed_transfer_ns=network_ns,
            exposed_memcpy_ns=0,
            idle_ns=idle_ns,
            collective_ns=network_ns,
            overlapped_ns=0,
            efficiency_ratio=compute_ns / wall_ns,
        ),
        launch_ns=0,
        tokens_per_s=layout.step_tokens / degrees.devices / wall_ns * 1e9,
        model_flops_ratio=0.4,
        bound=Bound.BUBBLE if idle_ns > network_ns else Bound.COMPUTE,
    )
