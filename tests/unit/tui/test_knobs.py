"""Which knobs a run has, what each can be turned to, and what change a turned one makes."""

import pytest
from msgspec.structs import replace

from zprof.model.plan import Change
from zprof.tui.knobs import Knob, KnobFacts, drop_idle_knobs, list_knobs, turn_knob

RUN = KnobFacts(
    world_size=4, stage=3, has_time=True, has_memory=True, gathers=True, micro_batches=3, prefetch=1, units=4
)
LINKS = {"bandwidth_ratio", "latency_ratio", "even", "overlap_reduce", "overlap_gather"}
SHARDS = {"stage", "prefetch", "keep_after_forward", "units_merged"}
ALL = LINKS | SHARDS | {"micro_batches"}


def knob(name: str, facts: KnobFacts = RUN, change: Change | None = None) -> Knob:
    return next(one for one in list_knobs(facts, change or Change()) if one.field == name)


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        (RUN, ALL),
        (replace(RUN, world_size=1), {"micro_batches"}),
        (replace(RUN, has_time=False), SHARDS | {"micro_batches"}),
        (replace(RUN, has_memory=False), ALL),
        (replace(RUN, has_memory=False, has_time=False), set()),
        (replace(RUN, stage=None), ALL - {"stage"}),
        (
            replace(RUN, stage=None, gathers=False),
            ALL - {"stage", "prefetch", "keep_after_forward", "overlap_gather"},
        ),
    ],
    ids=["all", "one rank", "no time", "no memory", "nothing", "stage unknown", "no gathers"],
)
def test_a_run_has_the_knobs_that_mean_something(facts: KnobFacts, fields: set[str]) -> None:
    assert {one.field for one in list_knobs(facts, Change())} == fields <= set(Change.__struct_fields__)


@pytest.mark.parametrize(
    ("name", "facts", "choices"),
    [
        ("stage", RUN, ["0", "1", "2", "3"]),
        ("prefetch", RUN, ["0", "1", "2", "3", "4"]),
        ("prefetch", replace(RUN, prefetch=7), ["0", "1", "2", "3", "4", "7"]),
        ("micro_batches", RUN, ["1", "2", "3", "4", "8", "16"]),
        ("units_merged", RUN, ["1", "2", "3", "4"]),
        ("bandwidth_ratio", RUN, ["x0.25", "x0.5", "x1", "x2", "x4"]),
    ],
)
def test_the_choices_hold_what_was_measured(name: str, facts: KnobFacts, choices: list[str]) -> None:
    found = knob(name, facts)
    assert [choice.text for choice in found.choices] == choices
    assert [choice.value for choice in found.choices].count(None) == 1
    assert found.place(Change()) == found.measured


@pytest.mark.parametrize(
    ("start", "field", "by", "change"),
    [
        (Change(), "stage", -1, Change(stage=2)),
        (Change(stage=2), "stage", 1, Change()),
        (Change(), "stage", 1, Change()),
        (Change(), "bandwidth_ratio", -9, Change(bandwidth_ratio=0.25)),
        (Change(), "overlap_reduce", -1, Change(overlap_reduce=False)),
        (Change(), "none such", 1, Change()),
        (Change(stage=2, prefetch=4), "prefetch", 1, Change(stage=2, prefetch=4)),
    ],
)
def test_a_knob_turns_by_places_and_stays_at_its_ends(
    start: Change, field: str, by: int, change: Change
) -> None:
    assert turn_knob(list_knobs(RUN, start), start, field, by) == change


@pytest.mark.parametrize(
    ("stage", "idle"),
    [
        (0, {"prefetch", "keep_after_forward", "overlap_gather"}),
        (1, {"prefetch", "keep_after_forward"}),
        (2, {"prefetch", "keep_after_forward"}),
        (None, {"overlap_gather"}),
    ],
)
def test_what_means_nothing_at_a_stage_is_idle_and_not_asked_for(stage: int | None, idle: set[str]) -> None:
    change = Change(stage=stage, prefetch=4)
    knobs = list_knobs(RUN, change)
    assert {one.field for one in knobs if one.idle} == idle
    assert drop_idle_knobs(knobs, change) == Change(stage=stage, prefetch=None if "prefetch" in idle else 4)


def test_a_choice_that_turns_out_to_be_the_measured_one_is_no_change() -> None:
    unknown = replace(RUN, prefetch=None)
    assert knob("prefetch", unknown).choices[0].value is None
    change = turn_knob(list_knobs(unknown, Change()), Change(), "prefetch", 2)
    assert change == Change(prefetch=1)
    assert not knob("prefetch", RUN, change).is_turned(change)
    assert drop_idle_knobs(list_knobs(RUN, change), change) == Change()
