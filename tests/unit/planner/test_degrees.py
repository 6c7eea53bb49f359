"""The same devices, spread in another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.model.job import Batch, Degrees, Hardware, Job, Shape, Unit
from zprof.model.plan import ZERO_STAGES, Scheme
from zprof.planner.degrees import spread_devices
from zprof.planner.hardware import V100

STAGED = tuple(ZERO_STAGES)


def job(
    *, dp: int = 1, mp: int = 1, pp: int = 1, shape: Shape | None = None, hardware: Hardware | None = None
) -> Job:
    degrees = Degrees(dp=dp, mp=mp, pp=pp)
    return Job(parameters=10**9, degrees=degrees, shape=shape, hardware=hardware)


@pytest.mark.parametrize("scheme", STAGED)
def test_zero_takes_pipeline_stages_for_data_parallel_ranks(scheme: Scheme) -> None:
    assert spread_devices(job(dp=8, mp=2), scheme).degrees == Degrees(dp=8, mp=2)
    assert spread_devices(job(dp=8, mp=2, pp=4), scheme).degrees == Degrees(dp=32, mp=2)


def test_model_parallelism_fills_a_node() -> None:
    assert spread_devices(job(dp=64), Scheme.MODEL_PARALLEL).degrees == Degrees(dp=8, mp=8)
    assert spread_devices(job(dp=64, hardware=V100), Scheme.MODEL_PARALLEL).degrees == Degrees(dp=4, mp=16)
    assert spread_devices(job(dp=9, pp=2), Scheme.MODEL_PARALLEL).degrees == Degrees(dp=3, mp=6)
    assert spread_devices(job(dp=4, mp=2, pp=2), Scheme.MODEL_PARALLEL).degrees == Degrees(dp=8, mp=2)


def test_model_parallelism_divides_hidden_and_heads_and_pads_the_vocabulary() -> None:
    shape = Shape(layers=48, hidden=1600, heads=25, vocabulary=50_257)
    assert spread_devices(job(dp=100, shape=shape), Scheme.MODEL_PARALLEL).degrees == Degrees(dp=20, mp=5)
    assert spread_devices(job(dp=64, shape=shape), Scheme.MODEL_PARALLEL).degrees == Degrees(dp=64)
    headless = Shape(layers=48, hidden=1600, vocabulary=50_257)
    made = spread_devices(job(dp=64, shape=headless), Scheme.MODEL_PARALLEL)
    assert made.degrees.mp == 8
    assert made.shape is not None
    assert made.shape.vocabulary == 50_264


def test_units_of_one_rank_become_parts_whose_bytes_nobody_knows() -> None:
    unit = Unit(name="a", elements=17, saved_bytes=5, forward_flop=3.0)
    whole = Job(parameters=17, units=(unit,), degrees=Degrees(dp=8))
    assert spread_devices(whole, Scheme.MODEL_PARALLEL).units == (Unit(name="a", elements=3),)
    assert spread_devices(whole, Scheme.ZERO_3).units == (unit,)
    alone = Job(parameters=17, units=(unit,))
    assert spread_devices(alone, Scheme.MODEL_PARALLEL).units == (unit,)


@pytest.mark.parametrize("scheme", [Scheme.GPIPE, Scheme.PIPEDREAM])
def test_pipelines_divide_the_layers(scheme: Scheme) -> None:
    shape = Shape(layers=12, hidden=64)
    assert spread_devices(job(dp=64, shape=shape), scheme).degrees == Degrees(dp=16, pp=4)
    assert spread_devices(job(dp=64, mp=2), scheme).degrees == Degrees(dp=8, mp=2, pp=8)
    assert spread_devices(job(dp=4, pp=3, shape=shape), scheme).degrees == Degrees(dp=4, pp=3)
    blocks = tuple(Unit(name=str(n), elements=1) for n in range(6))
    of_units = Job(parameters=6, units=blocks, degrees=Degrees(dp=8))
    assert spread_devices(of_units, scheme).degrees == Degrees(dp=4, pp=2)


@given(
    st.integers(1, 200),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(list(Scheme)),
    st.none() | st.builds(Shape, layers=st.integers(1, 99), hidden=st.integers(1, 99)),
)
def test_devices_stay_as_many(dp: int, mp: int, pp: int, scheme: Scheme, shape: Shape | None) -> None:
    given_job = job(dp=dp, mp=mp, pp=pp, shape=shape)
    made = spread_devices(given_job, scheme)
    assert made.degrees.devices == given_job.degrees.devices
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
        (Degrees(dp=64), 3, Scheme.MODEL_PARALLEL, 24),
        (Degrees(dp=64), 3, Scheme.PIPEDREAM, 24),
        (Degrees(dp=64), 3, Scheme.ZERO_1, 3),
    ],
)
def test_every_scheme_works_off_the_same_global_batch(
    stated: Degrees, micro_batches: int, scheme: Scheme, expected: int
) -> None:
    batch = Batch(samples=5, sequence=7, micro_batches=micro_batches)
    made = spread_devices(Job(parameters=10**9, degrees=stated, batch=batch), scheme)
    assert made.batch == Batch(samples=5, sequence=7, micro_batches=expected)
