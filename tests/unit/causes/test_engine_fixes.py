"""A fix has the form of the run's framework and engine, and the sizes of its messages."""

import pytest
from msgspec.structs import replace

from tests.support.rule_runs import run_of
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import ANY, Fix, choose_fix, measure_sizes, round_up
from zprof.model.training import Engine, Framework

FIX = Fix(
    forms={engine: f"form of {engine.value}" for engine in Engine if engine is not Engine.PYTORCH},
    settings={
        (Framework.TRANSFORMERS, Engine.FSDP1): "trainer around fsdp1",
        (Framework.LIGHTNING, ANY): "lightning",
    },
)


def run_with(engine: str, framework: Framework | None = None, stage: int | None = 3) -> RunAnalysis:
    run = run_of()
    return replace(run, training=replace(run.training, engine=engine, framework=framework, stage=stage))


@pytest.mark.parametrize(
    ("engine", "framework", "forms"),
    [
        ("fsdp2", None, {"fsdp2"}),
        ("FSDP1", None, {"fsdp1"}),
        ("deepspeed", None, {"deepspeed"}),
        ("reference", None, {"reference", "fsdp2"}),
        ("unknown", None, {"fsdp2", "deepspeed"}),
        ("fsdp2", Framework.TRANSFORMERS, {"fsdp2"}),
        ("fsdp1", Framework.TRANSFORMERS, set()),
        ("fsdp2", Framework.LIGHTNING, set()),
    ],
)
def test_only_what_applies_to_the_run_is_listed(
    engine: str, framework: Framework | None, forms: set[str]
) -> None:
    fix = choose_fix(run_with(engine, framework), FIX)
    assert {each.value for each in Engine if f"form of {each.value}" in fix} == forms
    assert bool(fix)


def test_a_sharded_optimizer_is_an_engine_of_its_own() -> None:
    fix = choose_fix(run_with("ddp", stage=1), FIX)
    assert fix == f"form of {Engine.ZERO1.value}"


def test_the_engine_that_the_events_show_counts() -> None:
    assert choose_fix(replace(run_with("unknown"), engine=Engine.DDP), FIX) == "form of ddp"


def test_numbers_come_from_the_run() -> None:
    run = run_with("deepspeed")
    sizes = measure_sizes(run)
    gathers = run.collectives.at(run.collectives.texts("kind").equals("all_gather"))
    element_bytes = run.training.communication_bytes or run.training.parameter_bytes or 2
    assert sizes["gather_elements"] == round_up(gathers.ints("bytes").max() / element_bytes)
    fix = Fix(forms={Engine.DEEPSPEED: '{"bucket": $gather_elements, "hosts": $hosts}'})
    assert choose_fix(run, fix, {"hosts": 2}) == f'{{"bucket": {sizes["gather_elements"]}, "hosts": 2}}'


def test_a_run_without_messages_has_defaults() -> None:
    run = run_with("deepspeed")
    assert (
        measure_sizes(replace(run, collectives=run.collectives.at(slice(0))))["gather_elements"] > 1_000_000
    )
