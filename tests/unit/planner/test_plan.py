"""A plan composes its parts: what is printed, what is said to be unknown, and what fits."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from zprof.model.errors import BadInput
from zprof.model.job import Batch, Degrees, Hardware, Job, Residual, Shape
from zprof.model.plan import PLAN_SCHEMA, Plan, PlanRow, Scheme
from zprof.model.tenants import Tenant
from zprof.planner.degrees import spread_devices
from zprof.planner.gpt_units import with_units
from zprof.planner.memory.states import state_bytes
from zprof.planner.model_shapes import count_parameters, find_preset
from zprof.planner.plan import ASSUMPTIONS, TIGHT_RATIO, plan

BARE = Job(parameters=7_500_000_000, degrees=Degrees(dp=64))
STAGED = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)
STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)


def machine(memory_bytes: int) -> Hardware:
    return Hardware(
        name="any",
        memory_bytes=memory_bytes,
        flops_per_s=125e12,
        efficiency_ratio=0.3,
        devices_per_node=16,
        node_bytes_per_s=1e11,
        intra_bytes_per_s=1.3e11,
    )


def of_preset(name: str, *, batch: Batch, memory_bytes: int, **degrees: int) -> Job:
    named = find_preset(name)
    return Job(
        parameters=named.parameters,
        shape=named.shape,
        degrees=Degrees(**degrees),
        batch=batch,
        hardware=machine(memory_bytes),
        residual=Residual(checkpointing=True),
    )


def row(made: Plan, scheme: Scheme) -> PlanRow:
    return next(each for each in made.rows if each.scheme is scheme)


def test_figure_1_with_the_tenants_behind_it() -> None:
    made = plan(BARE)
    rows = [row(made, scheme) for scheme in STAGED]
    assert [round(each.state_bytes / 1e9, 1) for each in rows] == [120, 31.4, 16.6, 1.9]
    assert [each.stage for each in rows] == [0, 1, 2, 3]
    assert [round(rows[2].tenants[tenant] / 1e9, 2) for tenant in STATES] == [15.0, 0.23, 1.41]


def test_all_schemes_stand_in_one_table() -> None:
    made = plan(BARE)
    assert [each.scheme for each in made.rows] == list(Scheme)
    assert {each.degrees.devices for each in made.rows} == {64}
    assert made.schema == PLAN_SCHEMA
    assert plan(BARE, schemes=[Scheme.ZERO_2]).rows == (row(made, Scheme.ZERO_2),)


def test_what_is_not_known_is_a_gap_with_a_remedy_said_once() -> None:
    made = plan(BARE)
    assert [gap.what for gap in made.gaps] == [
        "planned activations",
        "planned temporary buffers",
        "planned communication buffers of ZeRO-2 and ZeRO-3",
    ]
    for each in made.rows:
        unknown = {term.tenant for term in each.terms if term.bytes is None}
        assert unknown
        assert unknown.isdisjoint(each.tenants)
        assert each.peak_bytes is None
        assert each.least_bytes == each.state_bytes
        assert each.largest_parameters is None
        assert each.step is None


def test_a_stated_batch_leaves_nothing_unknown() -> None:
    made = plan(of_preset("7.5b", batch=Batch(samples=1, sequence=1024), memory_bytes=80 * 10**9, dp=64))
    assert made.gaps == ()
    assert all(each.peak_bytes == each.least_bytes for each in made.rows)
    assert all(each.fits is not None for each in made.rows)
    assert all(each.step is not None for each in made.rows)


def test_fits_is_known_as_soon_as_what_is_known_does_not() -> None:
    made = plan(replace(BARE, hardware=machine(31_000_000_000)))
    assert row(made, Scheme.ZERO_1).fits is False
    assert row(made, Scheme.ZERO_2).fits is None
    assert row(made, Scheme.DATA_PARALLEL).fits is False
    assert all(each.fits is None for each in plan(BARE).rows)


def test_little_of_a_device_left_is_tight() -> None:
    job = of_preset("1.5b", batch=Batch(samples=1, sequence=1024), memory_bytes=80 * 10**9, dp=4)
    roomy = row(plan(job), Scheme.ZERO_2)
    peak = roomy.peak_bytes
    assert peak is not None
    assert (roomy.left_bytes, roomy.tight) == (80 * 10**9 - peak, False)
    edge = round(peak / (1 - TIGHT_RATIO))
    for memory, fits, tight in (
        (edge + 2, True, False),
        (edge - 2, True, True),
        (peak, True, True),
        (peak - 1, False, False),
    ):
        found = row(plan(replace(job, hardware=machine(memory)), schemes=[Scheme.ZERO_2]), Scheme.ZERO_2)
        assert (found.fits, found.tight, found.left_bytes) == (fits, tight, memory - peak)


def test_what_is_left_is_not_known_where_the_peak_or_the_device_is_not() -> None:
    known_too_much = plan(replace(BARE, hardware=machine(31_000_000_000))).rows
    for each in (*known_too_much, *plan(BARE).rows):
        assert (each.left_bytes, each.tight) == (None, False)


def test_a_trillion_on_1024_devices_has_no_room_for_a_gathered_unit() -> None:
    """15.6 GB of states are in the paper, the units that are whole at a time are not."""
    job = of_preset("1t", batch=Batch(samples=1, sequence=1024), memory_bytes=32 * 10**9, dp=1024)
    zero_3 = row(plan(job), Scheme.ZERO_3)
    assert sum(state_bytes(job, Scheme.ZERO_3).values()) == pytest.approx(15.7e9, rel=0.01)
    assert zero_3.tenants[Tenant.COMMUNICATION_BUFFERS] > 2 * 15.7e9
    assert zero_3.fits is False
    assert zero_3.largest_parameters is not None
    assert zero_3.largest_parameters < job.parameters
    assert row(plan(replace(job, hardware=machine(141 * 10**9))), Scheme.ZERO_3).fits is True


@pytest.mark.parametrize("batch", [Batch(), Batch(samples=2, sequence=1024, micro_batches=4)])
@pytest.mark.parametrize("name", ["gpt2-1.5b", "13b"])
def test_every_figure_names_an_assumption_that_is_there(name: str, batch: Batch) -> None:
    made = plan(of_preset(name, batch=batch, memory_bytes=32 * 10**9, dp=16))
    named = {term.assumption for each in made.rows for term in each.terms}
    named |= {link.assumption for each in made.rows for link in each.links}
    named |= {key for each in made.rows if each.step for key in each.step.assumptions.values()}
    assert set(made.assumptions) == named | {"largest.model"}
    assert all(made.assumptions[key] == ASSUMPTIONS[key] for key in named)
    assert all(each.formula and each.source for each in ASSUMPTIONS.values())


def test_impossible_jobs_are_refused_before_anything() -> None:
    with pytest.raises(BadInput, match="parameters is 0"):
        plan(replace(BARE, parameters=0))


jobs = st.builds(
    lambda layers, hidden, dp, samples, memory, checkpointing: Job(
        parameters=count_parameters(Shape(layers=layers, hidden=hidden * 64, vocabulary=512)),
        shape=Shape(layers=layers, hidden=hidden * 64, vocabulary=512),
        degrees=Degrees(dp=dp),
        batch=Batch(samples=samples, sequence=64 if samples else None),
        hardware=machine(memory * 4 * 10**6),
        residual=Residual(checkpointing=checkpointing),
    ),
    st.integers(1, 24),
    st.integers(1, 8),
    st.sampled_from([1, 2, 8, 12]),
    st.none() | st.integers(1, 8),
    st.integers(1, 300),
    st.booleans(),
)


@settings(max_examples=12)
@given(jobs)
def test_rows_are_consistent(job: Job) -> None:
    try:
        made = plan(job)
    except BadInput:  # a unit that is larger than the device
        reject()
    for each in made.rows:
        known = sum(term.bytes for term in each.terms if term.bytes is not None)
        assert each.least_bytes == known == sum(each.tenants.values())
        by_tenant = state_bytes(with_units(spread_devices(job, each.scheme)), each.scheme)
        stashed = each.degrees.pp - 1 if each.scheme is Scheme.PIPEDREAM else 0
        assert each.state_bytes == sum(by_tenant.values()) + stashed * by_tenant[Tenant.PARAMETERS]
        assert job.hardware is not None
        assert (each.fits is False) == (known > job.hardware.memory_bytes)
        assert (each.fits is None) == (each.peak_bytes is None and each.fits is not False)
        assert each.largest_parameters is not None
        assert (job.parameters > each.largest_parameters) == (each.fits is False)


def test_planning_needs_no_table_and_no_tensor_library() -> None:
    code = (
        "import sys; from zprof.planner.plan import plan; from zprof.model.job import Job; "
        "plan(Job(parameters=10)); print(sorted({'torch', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("pp", "micro_batches"), [(1, 1), (4, 1), (4, 6)])
def test_sentences_say_the_peak_of_the_table(pp: int, micro_batches: int) -> None:
    """Spread without a pipeline a replica has fewer micro-batches, and its units keep other bytes."""
    batch = Batch(samples=1, sequence=1024, micro_batches=micro_batches)
    job = of_preset("7.5b", batch=batch, memory_bytes=80 * 10**9, dp=8, pp=pp)
    made = plan(job, schemes=[Scheme.ZERO_3], with_sensitivity=True)
    peak = made.rows[0].peak_bytes
    assert peak is not None
    assert made.sensitivity is not None
    [said] = [answer for answer in made.sensitivity.answers if "at its peak" in answer]
    assert f"needs {peak / 1e9:,.1f} GB at its peak" in said
