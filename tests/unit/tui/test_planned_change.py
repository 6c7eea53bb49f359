"""Headline and tables of a predicted change: saved or lost, between what, and what is not known."""

import json
import re

import pytest
from msgspec.structs import replace

from tests.support.tui_leaves import assert_leaves
from zprof.base.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.json_format import to_json
from zprof.model.plan import Change, Outlook, PredictedFigure, Prediction
from zprof.model.quantities import Value
from zprof.reports.table import Table
from zprof.tui.background import Answer, predict
from zprof.tui.knobs import collect_facts, list_knobs
from zprof.tui.opening import explain_model_number
from zprof.tui.screens.plan import PlannedChange, build_headline, build_planned_tables
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text, is_of_model

MS, MIB = 1_000_000, 1 << 20
NO_TIME = Gap(what="step", reason="no step was timed", remedy="record with zprof record")
CHANGE = Change(bandwidth_ratio=4.0, stage=2)


def entry(name: str, measured: int, predicted: int, low: int, high: int, unit: int = MS) -> PredictedFigure:
    return PredictedFigure(
        name=name,
        measured=measured * unit,
        modelled=measured * unit * 9 // 10,
        predicted=predicted * unit,
        low=low * unit,
        high=high * unit,
        error_ratio=-0.1,
        assumption="step.wall",
    )


def foretell(
    step: tuple[int, int] | None,
    saving: tuple[int, int] | None,
    peak: tuple[int, int, int, int] | None = None,
) -> PlannedChange:
    """Return what is predicted for a step of measured and predicted ms, and a peak of MiB."""
    prediction = Prediction(
        change=CHANGE,
        words="stage 2",
        step=(entry("wall_ns", *step, 0, 0),) if step else (),
        memory=(entry("peak_bytes", *peak, unit=MIB),) if peak else (),
        saving_ns=(saving[0] * MS, saving[1] * MS) if saving else None,
    )
    outlook = Outlook(predictions=(prediction,))
    return PlannedChange(change=CHANGE, words="stage 2", answer=outlook)


def read_headline(planned: PlannedChange) -> str:
    return " ".join(get_text(word) for word in build_headline(planned))


def planned(loaded: LoadedRun, change: Change = CHANGE) -> PlannedChange:
    return PlannedChange(change=change, words="stage 2", answer=predict(loaded.analysis, (change,)))


def tables(loaded: LoadedRun, found: PlannedChange) -> list[Table]:
    return list(build_planned_tables(loaded.report, found).values())


@pytest.mark.parametrize(
    ("step", "saving", "peak", "words"),
    [
        ((300, 240), (40, 80), None, "saves 60.0 300.0 20.0 40.0 80.0"),
        ((300, 330), (-50, -10), None, "costs 30.0 300.0 10.0 10.0 50.0"),
        ((300, 240), (-20, 80), None, "saves 60.0 300.0 20.0 20.0 longer 80.0 shorter"),
        ((300, 300), (-10, 10), None, "stays 300.0 10.0 longer 10.0 shorter"),
        ((300, 240), None, None, "saves 60.0 300.0 20.0 unknown"),
        (None, None, (10, 12, 11, 13), "uses 2.0 10.0 11.0 13.0"),
        (None, None, (10, 7, 6, 8), "frees 3.0 10.0 6.0 8.0"),
        (None, None, (10, 10, 9, 11), "stays 10.0"),
        ((300, 240), (40, 80), (10, 10, 9, 11), "saves 60.0 300.0 20.0 40.0 80.0 stays 10.0"),
    ],
)
def test_the_headline_has_what_is_saved_or_lost_and_its_range(
    step: tuple[int, int] | None,
    saving: tuple[int, int] | None,
    peak: tuple[int, int, int, int] | None,
    words: str,
) -> None:
    headline = read_headline(foretell(step, saving, peak))
    verbs = "saves|costs|uses|frees|stays|longer|shorter|unknown"
    assert re.findall(rf"{verbs}|\d+\.\d", headline) == words.split()


@pytest.mark.parametrize(
    ("answer", "has"),
    [
        (None, ["predicting", "stage 2"]),
        (
            BadInput("stage 2: no", hint="try [b]1\x1b[2J"),
            ["NOT PREDICTED", "stage 2: no", "try [b]1\\x1b[2J"],
        ),
        (Outlook(gaps=(NO_TIME,)), ["NOT PREDICTED", "stage 2"]),
    ],
    ids=["asked", "refused", "gap"],
)
def test_what_is_not_predicted_is_no_number(loaded: LoadedRun, answer: Answer | None, has: list[str]) -> None:
    found = PlannedChange(change=CHANGE, words="stage 2", answer=answer)
    headline = read_headline(found)
    assert all(text in headline for text in has)
    assert not re.findall(r"\d+\.\d", headline)
    for table in tables(loaded, found)[:2]:
        for line in table.rows:
            assert {get_text(cell) for cell in line.cells[2:7]} == {"..." if answer is None else "unknown"}
            assert get_text(line.cells[1])[0].isdigit()
            assert all(cell.leaves for cell in line.cells[2:7] if isinstance(cell, Value)), "it opens"
    assert not tables(loaded, found)[2].rows


def test_an_unknown_number_opens_the_reason(loaded: LoadedRun) -> None:
    found = PlannedChange(change=CHANGE, words="stage 2", answer=Outlook(gaps=(NO_TIME,)))
    (unknown, *_) = [number for number in tables(loaded, found)[0].list_values() if is_of_model(number)]
    report = replace(loaded.report, outlook=found.outlook)
    reasons = "\n".join(explain_model_number(report, unknown, "stage 2", found.gaps))
    assert NO_TIME.reason in reasons
    assert NO_TIME.remedy in reasons
    others = explain_model_number(report, unknown, "stage 2", ())
    assert others
    assert NO_TIME.reason not in "\n".join(others)


@pytest.mark.parametrize("change", [Change(), CHANGE, Change(even=True, micro_batches=2)], ids=str)
def test_every_number_is_a_leaf_of_the_report_that_is_written(loaded: LoadedRun, change: Change) -> None:
    found = planned(loaded, change)
    made = tables(loaded, found)
    tree = json.loads(to_json(replace(loaded.report, outlook=found.outlook)))
    numbers = [number for table in made for number in table.list_values()]
    assert len([number for number in numbers if is_of_model(number)]) > 50
    assert_leaves(tree, [number for number in numbers if number.number is not None])
    for number in numbers:
        is_predicted = is_of_model(number) and number.leaves[0].name in ("predicted", "low")
        assert number.text.startswith("~") == is_predicted, number
    measured = {line.key: line.cells[1] for table in made[:2] for line in table.rows}
    for one in (*found.prediction.step, *found.prediction.memory):
        number = measured.get(one.name)
        assert number is None or isinstance(number, Value)
        assert number is None or number.number == pytest.approx(one.measured, abs=1)


def test_the_planner_answers_every_choice_of_every_knob_from_what_the_report_measured(
    alone: LoadedRun,
) -> None:
    knobs = list_knobs(collect_facts(alone, None), Change())
    changes = tuple(Change(**{knob.field: choice.value}) for knob in knobs for choice in knob.choices)
    outlook = predict(alone.analysis, changes)
    assert [one.change for one in outlook.predictions] == list(changes)
    for prediction in outlook.predictions:
        answer = replace(outlook, predictions=(prediction,))
        found = PlannedChange(change=prediction.change, words="a change", answer=answer)
        cells = [line.cells for table in tables(alone, found)[:2] for line in table.rows]
        keys = [line.key for table in tables(alone, found)[:2] for line in table.rows]
        entries = {one.name.removesuffix("_bytes"): one for one in (*prediction.memory, *prediction.step)}
        assert {"wall_ns", "peak"} <= set(entries)
        for key, (_, measured, *others) in zip(keys, cells, strict=True):
            assert isinstance(measured, Value)
            if known := entries.get(key.removesuffix("_bytes")):
                assert measured.number == pytest.approx(known.measured, abs=1)
            assert all(is_of_model(cell) for cell in others if isinstance(cell, Value))
