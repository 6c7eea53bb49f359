"""The same devices, spread in another way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from zprof.model.job import Batch, Degrees, Job, ModelUnit, Shape
from zprof.model.machines import V100
from zprof.model.plan import Scheme
from zprof.planner.parallelism import spread_devices


def job(shape: Shape | None = None, dp: int = 1, mp: int = 1, pp: int = 1) -> Job:
    return Job(parameters=10**9, degrees=Degrees(dp=dp, mp=mp, pp=pp), shape=shape)


GPT_2 = Shape(layers=48, hidden=1600, heads=25, vocabulary=50_257)
HEADLESS = replace(GPT_2, heads=None)
BLOCKS = tuple(ModelUnit(name=str(n), elements=1) for n in range(6))
MEGATRON = Scheme.MODEL_PARALLEL


@pytest.mark.parametrize(
    ("stated", "scheme", "degrees"),
    [
        # ZeRO takes pipeline stages for data-parallel ranks.
        (job(dp=8, mp=2, pp=4), Scheme.ZERO_1, Degrees(dp=32, mp=2)),
        (job(dp=8, mp=2), Scheme.ZERO_3, Degrees(dp=8, mp=2)),
        # Model parallelism fills a node, and divides hidden and heads.
        (job(dp=64), MEGATRON, Degrees(dp=8, mp=8)),
        (replace(job(dp=64), hardware=V100), MEGATRON, Degrees(dp=4, mp=16)),
        (job(dp=9, pp=2), MEGATRON, Degrees(dp=3, mp=6)),
        (job(dp=4, mp=2, pp=2), MEGATRON, Degrees(dp=8, mp=2)),
        (job(GPT_2, dp=100), MEGATRON, Degrees(dp=20, mp=5)),
        (job(GPT_2, dp=64), MEGATRON, Degrees(dp=64)),
        (job(HEADLESS, dp=64), MEGATRON, Degrees(dp=8, mp=8)),
        # Pipelines divide the layers.
        (job(Shape(layers=12, hidden=64), dp=64), Scheme.GPIPE, Degrees(dp=16, pp=4)),
        (job(dp=64, mp=2), Scheme.PIPEDREAM, Degrees(dp=8, mp=2, pp=8)),
        (job(Shape(layers=12, hidden=64), dp=4, pp=3), Scheme.GPIPE, Degrees(dp=4, pp=3)),
        (replace(job(dp=8), units=BLOCKS), Scheme.PIPEDREAM, Degrees(dp=4, pp=2)),
    ],
)
def test_devices_are_spread_as_the_scheme_wants(stated: Job, scheme: Scheme, degrees: Degrees) -> None:
    assert spread_devices(stated, scheme).degrees == degrees


@settings(max_examples=60)
@given(
    st.integers(1, 200),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(list(Scheme)),
    st.none() | st.builds(Shape, layers=st.integers(1, 99), hidden=st.integers(1, 99)),
)
def test_devices_stay_as_many(dp: int, mp: int, pp: int, scheme: Scheme, shape: Shape | None) -> None:
    stated = job(shape, dp, mp, pp)
    made = spread_devices(stated, scheme)
    assert made.degrees.devices == stated.degrees.devices
    if shape is not None and mp == 1:
        assert shape.hidden % made.degrees.mp == 0
    if shape is not None and pp == 1:
        assert shape.layers % made.degrees.pp == 0


@pytest.mark.parametrize(
    ("stated", "micro_batches", "scheme", "expected"),
    [
        (Degrees(dp=8, pp=4), 8, Scheme.ZERO_3, 2),
        (Degrees(dp=8, pp=4), 8, Scheme.GPIPE, 8),
        (Degrees(dp=8, pp=4), 2, Scheme.ZERO_3, 1),  # not less than one each
        (Degrees(dp=64), 3, MEGATRON, 24),
        (Degrees(dp=64), 3, Scheme.PIPEDREAM, 24),
        (Degrees(dp=64), 3, Scheme.ZERO_1, 3),
    ],
)
def test_every_scheme_works_off_the_same_global_batch(
    stated: Degrees, micro_batches: int, scheme: Scheme, expected: int
) -> None:
    batch = Batch(samples=5, sequence=7, micro_batches=micro_batches)
    made = spread_devices(Job(parameters=10**9, degrees=stated, batch=batch), scheme)
    assert made.batch == replace(batch, micro_batches=expected)


def test_model_parallel_ranks_pad_the_vocabulary_and_have_parts_of_units() -> None:
    made = spread_devices(job(HEADLESS, dp=64), MEGATRON)
    assert made.shape is not None
    assert made.shape.vocabulary == 50_264
    whole = replace(job(dp=8), units=(ModelUnit(name="a", elements=17, saved_bytes=5),))
    assert spread_devices(whole, MEGATRON).units == (ModelUnit(name="a", elements=3),)
