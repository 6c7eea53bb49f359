"""Which knobs a run has, what each can be turned to, and what a turned one asks."""

from dataclasses import replace

import pytest

from zprof.model.whatif import Change
from zprof.tui.presenters.plan_knobs import (
    Knob,
    KnobFacts,
    describe_change,
    drop_idle_knobs,
    list_knobs,
    turn_knob,
)

RUN = KnobFacts(
    world_size=4, stage=3, has_time=True, has_memory=True, gathers=True, micro_batches=3, prefetch=1, units=4
)
OF_LINKS = {"bandwidth_ratio", "latency_ratio", "even", "overlap_reduce", "overlap_gather"}
OF_SHARDS = {"stage", "prefetch", "keep_after_forward", "units_merged"}


def fields(facts: KnobFacts, change: Change | None = None) -> set[str]:
    return {knob.field for knob in list_knobs(facts, change or Change())}


def knob(name: str, change: Change | None = None, facts: KnobFacts = RUN) -> Knob:
    return next(one for one in list_knobs(facts, change or Change()) if one.field == name)


def texts(name: str, facts: KnobFacts = RUN) -> list[str]:
    return [choice.text for choice in knob(name, facts=facts).choices]


def test_a_whole_run_has_all_knobs_and_every_one_is_a_field_of_a_change() -> None:
    found = fields(RUN)
    assert found == {*OF_LINKS, *OF_SHARDS, "micro_batches"}
    assert found <= set(Change.__dataclass_fields__)


@pytest.mark.parametrize(
    ("facts", "left"),
    [
        (replace(RUN, world_size=1), {"micro_batches"}),
        (replace(RUN, has_time=False), {*OF_SHARDS, "micro_batches"}),
        (replace(RUN, has_memory=False), {*OF_LINKS, *OF_SHARDS, "micro_batches"}),
        (replace(RUN, has_memory=False, has_time=False), set()),
        (replace(RUN, stage=None), {*OF_LINKS, *OF_SHARDS, "micro_batches"} - {"stage"}),
    ],
    ids=["one rank", "no time", "no memory", "nothing", "stage unknown"],
)
def test_only_what_means_something(facts: KnobFacts, left: set[str]) -> None:
    assert fields(facts) == left


def test_without_a_stage_and_without_gathers_nothing_gathers() -> None:
    facts = replace(RUN, stage=None, gathers=False)
    assert fields(facts) == {"bandwidth_ratio", "latency_ratio", "even", "overlap_reduce", "units_merged"} | {
        "micro_batches"
    }


def test_the_choices_hold_what_was_measured() -> None:
    assert texts("stage") == ["0", "1", "2", "3"]
    assert texts("prefetch") == ["0", "1", "2", "3", "4"]
    assert texts("prefetch", replace(RUN, prefetch=7))[-1] == "7"
    assert texts("prefetch", replace(RUN, prefetch=None))[0] == "as is"
    assert texts("micro_batches") == ["1", "2", "3", "4", "8", "16"]
    assert texts("units_merged") == ["1", "2", "3", "4"]
    assert texts("bandwidth_ratio") == ["x0.25", "x0.5", "x1", "x2", "x4"]
    for one in list_knobs(RUN, Change()):
        assert [choice.value for choice in one.choices].count(None) == 1
        assert one.place(Change()) == one.measured


def test_it_turns_by_one_and_stays_at_its_ends() -> None:
    knobs = list_knobs(RUN, Change())
    change = turn_knob(knobs, Change(), "stage", -1)
    assert change == Change(stage=2)
    assert turn_knob(knobs, change, "stage", 1) == Change()
    assert turn_knob(knobs, Change(), "stage", 1) == Change()
    assert turn_knob(knobs, Change(), "bandwidth_ratio", -9) == Change(bandwidth_ratio=0.25)
    assert turn_knob(knobs, Change(), "overlap_reduce", -1) == Change(overlap_reduce=False)
    assert turn_knob(knobs, Change(), "none such", 1) == Change()


@pytest.mark.parametrize(
    ("stage", "idle"),
    [
        (0, {"prefetch", "keep_after_forward", "overlap_gather"}),
        (1, {"prefetch", "keep_after_forward"}),
        (2, {"prefetch", "keep_after_forward"}),
        (None, {"overlap_gather"}),
    ],
)
def test_what_means_nothing_at_a_stage_is_idle(stage: int | None, idle: set[str]) -> None:
    knobs = list_knobs(RUN, Change(stage=stage))
    assert {one.field for one in knobs if one.idle} == idle


def test_an_idle_knob_does_not_turn_and_is_not_asked_for() -> None:
    change = Change(stage=2, prefetch=4)
    knobs = list_knobs(RUN, change)
    assert turn_knob(knobs, change, "prefetch", 1) == change
    assert drop_idle_knobs(knobs, change) == Change(stage=2)
    assert describe_change(knobs, change) == "stage 2"


def test_a_choice_that_turns_out_to_be_the_measured_one_is_no_change() -> None:
    """Before the model is there, what the run prefetches is not known."""
    change = turn_knob(list_knobs(replace(RUN, prefetch=None), Change()), Change(), "prefetch", 2)
    assert change == Change(prefetch=1)
    knobs = list_knobs(RUN, change)
    assert not knob("prefetch", change).is_turned(change)
    assert drop_idle_knobs(knobs, change) == Change()
    assert describe_change(knobs, change) == ""
