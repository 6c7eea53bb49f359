"""Model states against the paper's printed tables (arXiv 1910.02054), typed as they are printed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from zprof.model.job import Degrees, Job, ModelUnit, Shape
from zprof.model.plan import Scheme
from zprof.model.tenants import Tenant
from zprof.planner.memory.closed_forms import make_stashed_term, state_bytes, total_state_bytes

ZERO = (Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)
STAGED = (Scheme.DATA_PARALLEL, *ZERO)
# Table 1, GB per device: (stages 1, 2, 3) of 7.5B, 128B and 1T.
TABLE_1 = {
    1: ((120, 120, 120), (2048, 2048, 2048), (16000, 16000, 16000)),
    4: ((52.5, 41.3, 30), (896, 704, 512), (7000, 5500, 4000)),
    16: ((35.6, 21.6, 7.5), (608, 368, 128), (4750, 2875, 1000)),
    64: ((31.4, 16.6, 1.88), (536, 284, 32), (4187, 2218, 250)),
    256: ((30.4, 15.4, 0.47), (518, 263, 8), (4046, 2054, 62.5)),
    1024: ((30.1, 15.1, 0.12), (513, 257, 2), (4011, 2013, 15.6)),
}
MODELS = (7_500_000_000, 128_000_000_000, 1_000_000_000_000)


def gigabytes(parameters: int, dp: int, scheme: Scheme, mp: int = 1) -> float:
    job = Job(parameters=parameters, degrees=Degrees(dp=dp, mp=mp))
    return sum(state_bytes(job, scheme).values()) / 1e9


@pytest.mark.parametrize("dp", TABLE_1)
def test_table_1_as_printed(dp: int) -> None:
    """The columns of 7.5B are rounded to 3 figures, those of 128B and 1T cut to whole numbers."""
    for model, row in zip(MODELS, TABLE_1[dp], strict=True):
        for scheme, printed in zip(ZERO, row, strict=True):
            ours = gigabytes(model, dp, scheme)
            if model == MODELS[0] or printed != int(printed):
                assert abs(ours - printed) <= 0.06
            else:
                assert 0 <= ours - printed < 1


def test_figure_1_by_tenant_to_the_byte() -> None:
    shown = [round(gigabytes(7_500_000_000, 64, scheme), 1) for scheme in STAGED]
    assert shown == [120, 31.4, 16.6, 1.9]
    assert state_bytes(Job(parameters=7_500_000_000, degrees=Degrees(dp=64)), Scheme.ZERO_2) == {
        Tenant.PARAMETERS: 15_000_000_000,
        Tenant.GRADIENTS: 234_375_000,
        Tenant.OPTIMIZER_STATE: 1_406_250_000,
    }


def test_sizes_that_the_text_of_the_paper_gives() -> None:
    """GPT-2 in section 3, 1T in 5.4, and 60B = 75 x 8192 on 64, 128, 256 and 400 devices of table 6."""
    assert gigabytes(1_500_000_000, 1, Scheme.DATA_PARALLEL) == 24
    flat = gigabytes(10**12, 1024, Scheme.ZERO_3)
    assert flat == gigabytes(10**12, 64, Scheme.ZERO_3, mp=16) == 15.625
    ours = [gigabytes(12 * 75 * 8192**2, dp, Scheme.ZERO_2, mp=16) for dp in (4, 8, 16, 25)]
    assert ours == pytest.approx([20.76, 14.16, 10.85, 9.66], abs=0.006)


def test_states_of_units_are_exact_whatever_parameters_say() -> None:
    units = (ModelUnit(name="root", elements=101, encloses=True), ModelUnit(name="block", elements=1000))
    job = Job(parameters=10**6, degrees=Degrees(dp=3, mp=4), units=units)
    assert tuple(state_bytes(job, Scheme.ZERO_1).values()) == (2202, 2202, 1101 * 12 // 3)


def test_frozen_parameters_have_only_themselves_and_only_stage_3_shards_them() -> None:
    job = Job(parameters=1000, frozen_parameters=900, degrees=Degrees(dp=4))
    assert tuple(state_bytes(job, Scheme.ZERO_2).values()) == (2000, 50, 300)
    assert tuple(state_bytes(job, Scheme.ZERO_3).values()) == (500, 50, 300)
    whole = replace(job, frozen_parameters=1000)
    assert tuple(state_bytes(whole, Scheme.DATA_PARALLEL).values()) == (2000, 0, 0)


def blocks(*sizes: int) -> tuple[ModelUnit, ...]:
    return tuple(ModelUnit(name=f"block{n}", elements=size) for n, size in enumerate(sizes))


GPT = Shape(layers=8, hidden=64, vocabulary=1000, context=100)
GPT_SIZE = 12 * 8 * 64**2 + 1100 * 64
TABLES = (ModelUnit(name="root", elements=2 * 50 + 7, encloses=True), *blocks(10, 10, 10, 10))
UNEVEN = (ModelUnit(name="root", elements=7, encloses=True), *blocks(10, 20, 30, 40))


@pytest.mark.parametrize(
    ("job", "elements"),
    [
        (Job(parameters=GPT_SIZE, shape=GPT, degrees=Degrees(pp=4)), 12 * 2 * 64**2 + 1100 * 64),
        (
            Job(parameters=GPT_SIZE + 64_000, shape=replace(GPT, tied=False), degrees=Degrees(pp=4)),
            12 * 2 * 64**2 + 1100 * 64,
        ),
        (Job(parameters=107, units=UNEVEN, degrees=Degrees(pp=2)), 30 + 40 + 7),
        (
            Job(
                parameters=294,
                units=TABLES,
                shape=Shape(layers=4, hidden=5, vocabulary=20, tied=False),
                degrees=Degrees(pp=2, mp=2),
            ),
            20 + 50 + 7,
        ),
    ],
)
def test_the_largest_stage_of_a_pipeline_has_one_end_of_the_model(job: Job, elements: int) -> None:
    assert state_bytes(job, Scheme.GPIPE)[Tenant.PARAMETERS] == 2 * elements


@pytest.mark.parametrize(("frozen", "stashed"), [(0, 2000), (6000, 500), (8000, 0)])
def test_pipedream_stashes_a_version_of_what_is_trained_for_each_later_stage(
    frozen: int, stashed: int
) -> None:
    job = Job(parameters=8000, frozen_parameters=frozen, degrees=Degrees(pp=4))
    assert make_stashed_term(job, Scheme.PIPEDREAM).bytes == 3 * 2 * stashed
    assert total_state_bytes(job, Scheme.PIPEDREAM) == total_state_bytes(job, Scheme.GPIPE) + 3 * 2 * stashed


@settings(max_examples=50)
@given(st.integers(1, 10**15), st.integers(1, 5000), st.integers(1, 64), st.integers(1, 100))
def test_more_stages_and_ranks_never_take_more_and_together_hold_the_model(
    parameters: int, dp: int, mp: int, more: int
) -> None:
    job = Job(parameters=parameters, degrees=Degrees(dp=dp, mp=mp))
    wider = replace(job, degrees=Degrees(dp=dp + more, mp=mp))
    sizes = [state_bytes(job, scheme) for scheme in STAGED]
    for scheme, size in zip(STAGED, sizes, strict=True):
        fewer = state_bytes(wider, scheme)
        assert all(fewer[tenant] <= size[tenant] for tenant in size)
    for less, more_bytes in zip(sizes[1:], sizes, strict=False):
        assert all(less[tenant] <= more_bytes[tenant] for tenant in less)
    assert 0 <= sum(sizes[3].values()) * dp - sum(sizes[0].values()) < 3 * dp
    whole = sum(state_bytes(job, Scheme.MODEL_PARALLEL).values())
    assert 0 <= whole * mp - 16 * parameters < 16 * mp
