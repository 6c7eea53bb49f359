"""Layouts that a search returns are legal, keep the job, and are not beaten by others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.made_estimates import BASE, MACHINE, estimate_simply, make_model
from zprof.model.layout import Framework, Layout, ParallelDegrees, PipelineSchedule, Recompute
from zprof.model.plan import Fit, Search
from zprof.model.transformer import Transformer
from zprof.planner.legal_layouts import list_layouts, list_tensor_degrees
from zprof.planner.search import FRAMEWORKS, search_layouts, suggest_layouts
from zprof.planner.stages import count_stage_layers


def search(model: Transformer, devices: int, global_batch: int, sequence: int = 8192) -> Search:
    return search_layouts(
        model,
        MACHINE,
        replace(BASE, sequence=sequence),
        devices=devices,
        global_batch=global_batch,
        estimate=lambda layout: estimate_simply(model, layout),
    )


def check_legal(layout: Layout, model: Transformer, devices: int, global_batch: int) -> None:
    degrees, run = layout.degrees, model.layers[0]
    assert degrees.data * degrees.tensor * degrees.context * degrees.pipeline == devices
    assert layout.micro_batch * layout.micro_batches * degrees.data == global_batch
    assert run.mixer.heads % degrees.tensor == 0
    assert run.mixer.kv_heads % degrees.tensor == 0 or degrees.tensor % run.mixer.kv_heads == 0
    assert model.hidden % degrees.tensor == 0
    assert degrees.tensor <= min(MACHINE.devices_per_node, 16)
    assert layout.sequence % (2 * degrees.context) == 0 or degrees.context == 1
    assert degrees.pipeline * degrees.virtual <= model.layer_count
    if layout.schedule is PipelineSchedule.INTERLEAVED:
        assert layout.micro_batches % degrees.pipeline == 0
    assert (degrees.data * degrees.context) % degrees.shard == 0
    experts = getattr(run.feed_forward, "experts", 1)
    assert experts % degrees.expert == 0
    assert (degrees.data * degrees.context * degrees.tensor) % degrees.expert == 0
    if layout.framework in (Framework.DDP, Framework.DEEPSPEED):
        assert degrees.data == devices


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(1, 130),
    heads=st.sampled_from([8, 12, 40, 64]),
    kv_heads=st.sampled_from([1, 2, 4]),
    experts=st.sampled_from([0, 8, 60]),
    devices=st.sampled_from([1, 6, 8, 48, 64, 256]),
    global_batch=st.sampled_from([1, 12, 64, 480]),
    sequence=st.sampled_from([6, 2048, 131_072]),
)
def test_front_is_legal_and_not_beaten(
    layers: int, heads: int, kv_heads: int, experts: int, devices: int, global_batch: int, sequence: int
) -> None:
    model = make_model(layers, heads * 128, heads=heads, kv_heads=kv_heads, experts=experts)
    found = search(model, devices, global_batch, sequence)
    for estimate in found.front:
        check_legal(estimate.layout, model, devices, global_batch)
        assert estimate.peak_bytes <= MACHINE.memory_bytes
    for fast, slow in zip(found.front, found.front[1:], strict=False):
        assert fast.step.wall_ns < slow.step.wall_ns
        assert fast.peak_bytes > slow.peak_bytes
    assert bool(found.front) == bool(found.fitting)


def test_search_finds_the_fastest_of_all_layouts() -> None:
    """Compare with every micro-batch, recomputation and schedule of every legal layout."""
    model = make_model(48, 8192)
    devices, global_batch = 64, 256
    fastest = min(
        estimate.step.wall_ns
        for layout in list_layouts(
            model, MACHINE, BASE, devices=devices, global_batch=global_batch, frameworks=FRAMEWORKS
        )
        for schedule, virtual in [
            (PipelineSchedule.ONE_F_ONE_B, 1),
            *((PipelineSchedule.INTERLEAVED, chunks) for chunks in (2, 3, 4, 5, 6, 8, 10)),
        ]
        for micro_batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for recompute in Recompute
        if layout.micro_batches % micro_batch == 0
        and (
            virtual == 1
            or (
                layout.degrees.pipeline > 1
                and layout.micro_batches // micro_batch % layout.degrees.pipeline == 0
                and virtual * layout.degrees.pipeline <= 48
            )
        )
        for estimate in [
            estimate_simply(
                model,
                replace(
                    layout,
                    schedule=schedule,
                    degrees=replace(layout.degrees, virtual=virtual),
                    micro_batch=micro_batch,
                    micro_batches=layout.micro_batches // micro_batch,
                    recompute=recompute,
                ),
            )
        ]
        if estimate.fit is not Fit.TOO_LARGE
    )
    assert search(model, devices, global_batch).front[0].step.wall_ns == fastest


def test_126_layers_are_split_into_unequal_stages() -> None:
    model = make_model(126, 16_384, heads=128)
    layouts = list(
        list_layouts(model, MACHINE, BASE, devices=512, global_batch=512, frameworks=(Framework.MEGATRON,))
    )
    assert {layout.degrees.pipeline for layout in layouts} == {1, 2, 4, 8, 16, 32, 64}
    sizes = count_stage_layers(126, 8)
    assert (sum(sizes), min(sizes), max(sizes)) == (126, 15, 16)


@pytest.mark.parametrize(
    ("framework", "degrees"), [(Framework.FSDP2, (1, 2)), (Framework.MEGATRON, (1, 2, 4, 8))]
)
def test_only_megatron_copies_heads_of_keys(framework: Framework, degrees: tuple[int, ...]) -> None:
    assert list_tensor_degrees(make_model(4, 1024, heads=8, kv_heads=2), MACHINE, framework) == degrees


def test_hybrid_sharding_is_within_a_node() -> None:
    shards = {
        layout.degrees.shard
        for layout in list_layouts(
            make_model(4, 8192), MACHINE, BASE, devices=32, global_batch=32, frameworks=(Framework.FSDP2,)
        )
        if layout.degrees.tensor == layout.degrees.context == 1
    }
    assert shards == {8, 32}


def test_host_memory_is_used_only_if_nothing_else_fits() -> None:
    assert not any(found.layout.offload_optimizer for found in search(make_model(32, 4096), 8, 64).front)
    model = make_model(8, 4096)
    found = search_layouts(
        model,
        MACHINE,
        BASE,
        devices=8,
        global_batch=8,
        frameworks=(Framework.FSDP2,),
        estimate=lambda layout: estimate_simply(
            model, layout, MACHINE.memory_bytes if layout.offload_optimizer else 10**9
        ),
    )
    assert found.front
    assert all(each.layout.offload_optimizer for each in found.front)


def test_nothing_fits() -> None:
    found = search(make_model(100, 32_768), 1, 1)
    assert found.front == ()
    assert found.best is None
    assert found.smallest is not None
    assert found.smallest.fit is Fit.TOO_LARGE


def test_suggestions_are_one_per_scheme_and_fit() -> None:
    model = make_model(80, 8192)
    found = suggest_layouts(
        model,
        MACHINE,
        BASE,
        devices=64,
        global_batch=512,
        estimate=lambda layout: estimate_simply(model, layout),
    )
    schemes = [
        (
            each.layout.framework,
            each.layout.stage,
            each.layout.degrees.tensor > 1,
            each.layout.degrees.pipeline > 1,
        )
        for each in found
    ]
    assert len(set(schemes)) == len(schemes) > 1
    assert all(each.fit is not Fit.TOO_LARGE for each in found)
    fitting = [each.step.wall_ns for each in found if each.fit is Fit.FITS]
    assert fitting == sorted(fitting)


def test_degrees_of_a_search_differ_from_single_device() -> None:
    model = make_model(2, 1024, heads=8)
    found = search(model, 1, 4)
    assert {each.layout.degrees for each in found.front} == {ParallelDegrees()}
