"""What a plan does not know: of which columns, and what to state, whichever way the model is named."""

from dataclasses import replace

import pytest

from zprof.model.job import Batch, Degrees, Job, Unit
from zprof.model.plan import PIPELINES, SCHEME_NAMES, Plan, Scheme
from zprof.model.tenants import Tenant
from zprof.planner.hardware import H100
from zprof.planner.model_shapes import find_preset
from zprof.planner.plan import plan


def unit(name: str, *, encloses: bool = False) -> Unit:
    return Unit(
        name=name,
        elements=1000,
        encloses=encloses,
        saved_bytes=640,
        checkpoint_bytes=64,
        forward_work_bytes=64,
        backward_work_bytes=128,
        forward_flop=2e6,
        largest_gradient_elements=1000,
    )


ROOT = unit("root", encloses=True)
ONE_UNIT = Job(
    parameters=1000,
    units=(ROOT,),
    degrees=Degrees(dp=8),
    batch=Batch(samples=2, sequence=16),
    hardware=H100,
)
BLOCKS = replace(ONE_UNIT, parameters=5000, units=(ROOT, *(unit(f"block{n}") for n in range(4))))


def gap(made: Plan, begin: str) -> list[str]:
    return [each.what for each in made.gaps if each.what.startswith(begin)]


def test_a_model_of_one_unit_is_in_no_pipeline_and_says_why() -> None:
    made = plan(ONE_UNIT)
    assert [row.scheme for row in made.rows] == [each for each in Scheme if each not in PIPELINES]
    [said] = [each for each in made.gaps if each.what.startswith("units of the model")]
    assert "ZeRO-3 gathers all of it at once" in said.reason
    assert "nn.ModuleList" in said.remedy
    assert plan(ONE_UNIT, schemes=[Scheme.GPIPE]).rows == ()


def test_blocks_are_divided_over_the_stages() -> None:
    made = plan(BLOCKS)
    assert [row.scheme for row in made.rows] == list(Scheme)
    assert not gap(made, "units of the model")
    assert not gap(plan(replace(BLOCKS, units=())), "units of the model"), "parameters alone are no unit"


@pytest.mark.parametrize("job", [ONE_UNIT, BLOCKS])
def test_what_is_printed_is_not_said_to_be_unknown(job: Job) -> None:
    made = plan(job)
    lacking = [row.scheme for row in made.rows if any(term.bytes is None for term in row.terms)]
    assert lacking == [Scheme.MODEL_PARALLEL]
    assert gap(made, "planned activations") == ["planned activations of Megatron"]
    for row in made.rows:
        known = all(term.bytes is not None for term in row.terms if term.tenant is Tenant.ACTIVATIONS)
        assert known == (SCHEME_NAMES[row.scheme] not in gap(made, "planned activations")[0])


@pytest.mark.parametrize(
    ("job", "names"), [(ONE_UNIT, "times of Megatron"), (BLOCKS, "times of Megatron, GPipe and PipeDream")]
)
def test_columns_without_times_are_named(job: Job, names: str) -> None:
    made = plan(job)
    assert gap(made, "times of") == [names]
    untimed = [SCHEME_NAMES[row.scheme] for row in made.rows if row.step is None]
    assert all(name in names for name in untimed)
    assert len(untimed) == names.count(",") + names.count(" and ") + 1


def test_the_remedy_fits_the_way_the_model_was_named() -> None:
    counted = replace(BLOCKS, units=tuple(replace(each, saved_bytes=None) for each in BLOCKS.units))
    [mine] = {each.remedy for each in plan(counted, schemes=[Scheme.ZERO_3]).gaps}
    assert mine.startswith("let its forward take int64 tokens")
    by_size = plan(replace(BLOCKS, units=()), schemes=[Scheme.ZERO_3]).gaps
    assert {each.remedy for each in by_size} == {
        "state --layers and --hidden, or --preset, in place of --params"
    }
    named = find_preset("1.5b")
    shaped = Job(parameters=named.parameters, shape=named.shape)
    assert {each.remedy for each in plan(shaped).gaps} == {"state --micro-batch and --sequence"}
