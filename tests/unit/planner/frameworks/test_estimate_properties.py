"""What holds for every layout: sums, and which way memory and time move."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.planned_layouts import LLAMA, MIXTRAL, H, make_degrees, make_layout
from zprof.model.layout import Framework, Kernels, Layout, PipelineSchedule, Recompute
from zprof.model.machines import H100
from zprof.model.plan import Estimate, Fit, Term
from zprof.model.tenants import Tenant
from zprof.model.transformer import Attention, LayerRun, Mlp, Transformer
from zprof.planner.estimate import estimate_layout
from zprof.planner.framework_memory import compute_reserve_bytes, judge_fit
from zprof.planner.stages import count_stage_layers

MODELS = st.sampled_from([LLAMA, MIXTRAL])
_STAGES = {
    Framework.DDP: (0,),
    Framework.FSDP2: (3,),
    Framework.DEEPSPEED: (1, 2, 3),
    Framework.MEGATRON: (1,),
}
_ORDER = (Fit.FITS, Fit.TIGHT, Fit.TOO_LARGE)


@st.composite
def draw_layouts(draw: st.DrawFn) -> Layout:
    """Draw a layout of at least two data-parallel ranks."""
    framework = draw(st.sampled_from(list(_STAGES)))
    stage = draw(st.sampled_from(_STAGES[framework]))
    axes: dict[str, Any] = {"data": draw(st.sampled_from([2, 4, 16, 64]))}
    rest: dict[str, Any] = {"micro_batches": draw(st.integers(1, 6))}
    if framework in (Framework.MEGATRON, Framework.FSDP2):
        axes["tensor"] = draw(st.sampled_from([1, 2, 4]))
        axes["context"] = draw(st.sampled_from([1, 2]))
        rest["sequence_parallel"] = draw(st.booleans())
    if framework is Framework.MEGATRON:
        axes["pipeline"] = draw(st.sampled_from([1, 2, 4, 7]))
        axes["virtual"] = draw(st.sampled_from([1, 2]))
        rest["schedule"] = draw(st.sampled_from(list(PipelineSchedule)))
    return make_layout(
        framework,
        stage,
        make_degrees(**axes, **({} if stage else {"shard": 1})),
        micro_batch=draw(st.integers(1, 4)),
        sequence=draw(st.sampled_from([1024, 8192])),
        recompute=draw(st.sampled_from(list(Recompute))),
        reshard=draw(st.booleans()),
        fp32_reduce=draw(st.booleans()),
        master_weights=draw(st.booleans()),
        kernels=Kernels(
            flash_attention=draw(st.booleans()), fused_loss=draw(st.booleans()), compiled=draw(st.booleans())
        ),
        **rest,
    )


def _with_degrees(layout: Layout, **degrees: int) -> Layout:
    return replace(layout, degrees=replace(layout.degrees, **degrees))


def _estimate(model: Transformer, layout: Layout, **hardware: Any) -> Estimate:
    return estimate_layout(model, layout, replace(H100, **hardware))


@settings(max_examples=150, deadline=None)
@given(MODELS, draw_layouts())
def test_terms_sum_to_the_peak_and_the_ledger_to_the_step(model: Transformer, layout: Layout) -> None:
    made = _estimate(model, layout)
    assert sum(term.bytes or 0 for term in made.terms) == made.peak_bytes
    assert all((term.bytes or 0) > 0 for term in made.terms)
    assert made.left_bytes == H100.memory_bytes - made.peak_bytes - made.reserve_bytes
    step = made.step
    parts = step.compute_ns + step.exposed_transfer_ns + step.exposed_memcpy_ns + step.idle_ns
    assert parts == step.wall_ns
    assert step.overlapped_ns + step.exposed_transfer_ns == step.collective_ns
    assert min(step.compute_ns, step.exposed_transfer_ns, step.idle_ns, step.overlapped_ns) >= 0
    assert 0 < made.model_flops_ratio < 1


@settings(max_examples=100, deadline=None)
@given(MODELS, draw_layouts())
def test_memory_never_rises_with_more_ranks_that_share_the_states(model: Transformer, layout: Layout) -> None:
    degrees = layout.degrees
    shard = degrees.shard * 2 if layout.stage else 1
    larger = _with_degrees(layout, data=degrees.data * 2, shard=shard)
    assert _estimate(model, larger).peak_bytes <= _estimate(model, layout).peak_bytes


@settings(max_examples=100, deadline=None)
@given(MODELS, draw_layouts())
def test_memory_never_rises_with_more_tensor_ranks(model: Transformer, layout: Layout) -> None:
    if layout.degrees.tensor == 1:
        return
    larger = _with_degrees(layout, tensor=layout.degrees.tensor * 2)
    assert _estimate(model, larger).peak_bytes <= _estimate(model, layout).peak_bytes


@settings(max_examples=100, deadline=None)
@given(MODELS, draw_layouts())
def test_memory_never_rises_with_recomputation(model: Transformer, layout: Layout) -> None:
    peaks = [_estimate(model, replace(layout, recompute=each)).peak_bytes for each in Recompute]
    assert peaks == sorted(peaks, reverse=True)


@settings(max_examples=100, deadline=None)
@given(MODELS, draw_layouts(), st.floats(1.01, 50.0))
def test_a_faster_link_never_makes_a_step_longer(model: Transformer, layout: Layout, ratio: float) -> None:
    before = _estimate(model, layout)
    for field in ("intra_bytes_per_s", "node_bytes_per_s"):
        after = _estimate(model, layout, **{field: getattr(H100, field) * ratio})
        assert after.step.wall_ns <= before.step.wall_ns + 1_000  # rounding of each unit


@settings(max_examples=100, deadline=None)
@given(MODELS, draw_layouts(), st.integers(1, 400), st.integers(0, 400))
def test_more_memory_never_fits_worse(model: Transformer, layout: Layout, gigabytes: int, more: int) -> None:
    before = _estimate(model, layout, memory_bytes=gigabytes * 10**9)
    after = _estimate(model, layout, memory_bytes=(gigabytes + more) * 10**9)
    assert _ORDER.index(after.fit) <= _ORDER.index(before.fit)
    assert (before.left_bytes >= 0) == (before.fit is Fit.FITS)


@given(st.integers(1, 200), st.integers(1, 32))
def test_stages_hold_all_layers_once(layers: int, stages: int) -> None:
    sizes = count_stage_layers(layers, stages)
    assert len(sizes) == stages
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("at", range(8))
def test_a_heavy_layer_is_found_on_any_stage(at: int) -> None:
    """The fullest stage is the one with a layer of eight times the width, wherever it is."""
    attention = Attention(heads=32, kv_heads=8, head_width=128)
    narrow = LayerRun(count=1, mixer=attention, feed_forward=Mlp(width=8192))
    wide = replace(narrow, feed_forward=Mlp(width=8 * 8192))
    layers = tuple(wide if index == at else narrow for index in range(8))
    layout = make_layout(
        Framework.MEGATRON, 1, make_degrees(data=1, pipeline=8), micro_batches=8, sequence=128
    )
    made = _estimate(Transformer(hidden=H, layers=layers, vocabulary=1000), layout)
    assert made.stage == at
    weights = sum(term.bytes or 0 for term in made.terms if term.tenant is Tenant.PARAMETERS)
    assert weights >= 2 * 3 * H * 8 * 8192


@pytest.mark.parametrize(
    ("peak_ratio", "fit"), [(0.9, Fit.FITS), (1.0, Fit.TIGHT), (1.08, Fit.TIGHT), (1.12, Fit.TOO_LARGE)]
)
def test_too_large_is_beyond_the_usual_error_of_a_peak(peak_ratio: float, fit: Fit) -> None:
    memory_bytes = 80_000_000_000
    assert judge_fit(round(peak_ratio * memory_bytes), 2_000_000_000, memory_bytes) is fit


def test_the_reserve_is_context_communicator_and_a_twentieth_of_what_moves() -> None:
    terms = tuple(
        Term(tenant=tenant, sub="", bytes=20_000_000_000, assumption="")
        for tenant in (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE, Tenant.ACTIVATIONS)
    )
    assert compute_reserve_bytes(terms, 1) == 700_000_000 + 1_000_000_000
    assert compute_reserve_bytes(terms, 8) == 700_000_000 + 800_000_000 + 1_000_000_000
