"""What is predicted, in words: saved or lost, between what, and what is not known."""

from dataclasses import replace

import pytest

from tests.support.outlooks import ASSUMPTIONS, NO_MEMORY, NO_TIME
from zprof.model.errors import BadInput
from zprof.model.whatif import Change, Outlook, PredictedFigure, Prediction
from zprof.tui.presenters.plan import build_headline, format_gaps_cell
from zprof.tui.presenters.plan_prediction import PlannedChange

MS, MIB = 1_000_000, 1 << 20


def entry(name: str, measured: int, predicted: int, low: int, high: int) -> PredictedFigure:
    return PredictedFigure(
        name=name,
        measured=measured,
        modelled=measured - measured // 10,
        predicted=predicted,
        low=low,
        high=high,
        error_ratio=-0.1,
        assumption="step.wall",
    )


STEP = (entry("wall_ns", 300 * MS, 240 * MS, 220 * MS, 260 * MS),)
PEAK = (entry("peak_bytes", 10 * MIB, 12 * MIB, 11 * MIB, 13 * MIB),)
CHANGE = Change(stage=2)


def planned(
    step: tuple[PredictedFigure, ...] = STEP,
    memory: tuple[PredictedFigure, ...] = (),
    saving: tuple[int, int] | None = (40 * MS, 80 * MS),
    words: str = "stage 2",
) -> PlannedChange:
    prediction = Prediction(change=CHANGE, words=words, step=step, memory=memory, saving_ns=saving)
    outlook = Outlook(predictions=(prediction,), assumptions=ASSUMPTIONS)
    return PlannedChange(change=CHANGE, words=words, answer=outlook)


def said(found: PlannedChange) -> str:
    return " ".join(word.text for word in build_headline(found))


def test_a_saving_with_its_range() -> None:
    assert said(planned()) == (
        "~ PREDICTED stage 2: saves 60.0 ms of 300.0 ms a step, 20.0 %, between 40.0 and 80.0 ms."
    )


def test_a_loss_is_said_as_one() -> None:
    slower = (entry("wall_ns", 300 * MS, 330 * MS, 310 * MS, 350 * MS),)
    assert said(planned(slower, saving=(-50 * MS, -10 * MS))) == (
        "~ PREDICTED stage 2: costs 30.0 ms more than 300.0 ms a step, 10.0 %, between 10.0 and 50.0 ms."
    )


def test_what_may_be_either_says_both_ends() -> None:
    either = said(planned(saving=(-20 * MS, 80 * MS)))
    assert "anything from 20.0 ms longer to 80.0 ms shorter" in either
    same = (entry("wall_ns", 300 * MS, 300 * MS, 290 * MS, 310 * MS),)
    assert "a step stays 300.0 ms, anything from 10.0 ms longer" in said(
        planned(same, saving=(-10 * MS, 10 * MS))
    )
    assert said(planned(saving=None)).endswith("20.0 %, range unknown.")


def test_memory_is_said_beside_it() -> None:
    assert said(planned(memory=PEAK)).endswith(
        "between 40.0 and 80.0 ms; takes 2.0 MiB more than 10.0 MiB of memory, "
        "peak between 11.0 and 13.0 MiB."
    )
    less = (entry("peak_bytes", 10 * MIB, 7 * MIB, 6 * MIB, 8 * MIB),)
    assert "stage 2: frees 3.0 MiB of 10.0 MiB of memory" in said(planned((), less))
    same = (replace(PEAK[0], predicted=10 * MIB),)
    assert "the peak stays 10.0 MiB" in said(planned((), same))


def test_the_run_as_it_is() -> None:
    assert said(planned(words="")) == (
        "AS MEASURED turn a knob: left and right. The model of this run gives a step of 270.0 ms where "
        "300.0 ms was measured: -10.0 % (model / measured - 1)."
    )
    assert "The step of this run could not be modelled." in said(planned((), words=""))


def test_what_is_not_predicted_is_no_number() -> None:
    asked = PlannedChange(change=CHANGE, words="stage 2")
    assert said(asked) == "predicting stage 2 ..."
    refused = replace(asked, answer=BadInput("stage 2: no", hint="try [b]1\x1b[2J"))
    assert said(refused) == "NOT PREDICTED stage 2: no (try [b]1\\x1b[2J)"
    assert said(replace(asked, answer=Outlook(gaps=(NO_TIME,)))) == "NOT PREDICTED stage 2"
    assert said(planned((), ())).endswith("neither the step nor the peak.")


@pytest.mark.parametrize("memory", [(), PEAK], ids=["half of it", "all of it"])
def test_gaps_are_said_with_their_remedy(memory: tuple[PredictedFigure, ...]) -> None:
    found = planned(memory=memory)
    assert format_gaps_cell(found).text == ""
    outlook = found.outlook
    assert outlook is not None
    one = replace(found, answer=replace(outlook, gaps=(NO_TIME,)))
    what = "not known" if memory else "not predicted"
    assert format_gaps_cell(one).text == (
        f"! {what}: step: no step was timed; what helps: record with zprof record"
    )
    both = replace(found, answer=replace(outlook, gaps=(NO_TIME, NO_MEMORY)))
    assert format_gaps_cell(both).text.startswith(f"! {what} (g: all 2): step")
