"""What holds of the peak of any job: signs, bounds, and which way it goes."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from walk_jobs import BF16, FP32, of_shape, peak_bytes

from zprof.model.job import Backend, Batch, Degrees, Job, Overlap, Residual
from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.layout import compute_model_states, sum_padded_elements
from zprof.planner.memory.walk.ledger import ASSUMPTIONS
from zprof.planner.memory.walk.peak import find_peak, walk_step

STAGES = st.integers(0, 3)
STATES = (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE)
RESIDUALS = [
    Residual(),
    Residual(checkpointing=True),
    Residual(defragment=True),
    Residual(constant_buffer_elements=64),
    Residual(checkpointing=True, partition=True, defragment=True),
]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    return of_shape(
        layers=draw(st.integers(1, 6)),
        hidden=draw(st.sampled_from([8, 16, 48])),
        vocabulary=draw(st.sampled_from([0, 16, 400])),
        tied=draw(st.booleans()),
        batch=Batch(samples=draw(st.integers(1, 8)), sequence=8, micro_batches=draw(st.integers(1, 3))),
        degrees=Degrees(dp=draw(st.sampled_from([1, 2, 4])), mp=draw(st.sampled_from([1, 2]))),
        element_bytes=draw(st.sampled_from([FP32, BF16])),
        overlap=Overlap(
            prefetch=draw(st.integers(0, 3)),
            keep_last=draw(st.booleans()),
            reductions_in_flight=draw(st.integers(1, 3)),
            alignment_elements=draw(st.sampled_from([1, 8])),
        ),
        residual=draw(st.sampled_from(RESIDUALS)),
        backend=draw(st.sampled_from(list(Backend))),
    )


def with_overlap(job: Job, **fields: int) -> Job:
    return replace(job, overlap=replace(job.overlap, **fields))  # type: ignore[arg-type]


@settings(max_examples=25)
@given(jobs(), STAGES)
def test_no_term_is_negative_and_states_are_below_the_peak(job: Job, stage: int) -> None:
    found = find_peak(job, stage)[0]
    assert all((term.bytes or 0) > 0 and term.assumption in ASSUMPTIONS for term in found)
    states = compute_model_states(job, stage)
    held = {tenant: sum(t.bytes or 0 for t in found if t.tenant is tenant) for tenant in STATES}
    assert held == {tenant: states[tenant] for tenant in STATES}
    assert peak_bytes(job, stage) >= sum(states.values())


@settings(max_examples=25)
@given(jobs(), st.integers(1, 4))
def test_more_ranks_never_raise_the_peak_of_stage_3(job: Job, times: int) -> None:
    """Padding apart: shards are rounded up, and a constant buffer has whole parts of all ranks."""
    fewer = with_overlap(job, alignment_elements=1)
    more = replace(fewer, degrees=replace(fewer.degrees, dp=fewer.degrees.dp * times))
    wider = 16 * max(0, sum_padded_elements(more) - sum_padded_elements(fewer))
    assert peak_bytes(more, 3) <= peak_bytes(fewer, 3) + wider + 4 * 3 * 64 * times


@settings(max_examples=25)
@given(jobs(), st.integers(0, 2))
def test_units_ahead_raise_the_peak_of_stage_3_only_and_gloo_that_of_all(job: Job, stage: int) -> None:
    nccl, gloo = (replace(job, backend=backend) for backend in (Backend.NCCL, Backend.GLOO))
    ahead = [with_overlap(nccl, prefetch=count) for count in range(4)]
    peaks = [peak_bytes(each, 3) for each in ahead]
    assert peaks == sorted(peaks)
    assert peak_bytes(ahead[0], stage) == peak_bytes(ahead[3], stage)
    assert all(peak_bytes(nccl, each) <= peak_bytes(gloo, each) for each in (stage, 3))


@settings(max_examples=15)
@given(jobs(), STAGES, st.integers(20, 60))
def test_equal_units_that_are_left_out_change_nothing(job: Job, stage: int, layers: int) -> None:
    blocks = [unit for unit in job.units if not unit.encloses]
    around = [unit for unit in job.units if unit.encloses]
    long = replace(
        with_overlap(job, prefetch=min(job.overlap.prefetch, 2)),
        units=(*around, *(replace(blocks[0], name=f"blocks.{index}") for index in range(layers))),
    )
    assert peak_bytes(long, stage) == walk_step(long, stage, ends=layers).peak_bytes
