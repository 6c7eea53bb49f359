"""The planner's own answer on the screen's tables: on a frozen run, by the seam that the app uses."""

import pytest

from zprof.model.whatif import Change
from zprof.tui.background import predict
from zprof.tui.figures import Figure, ModelFigure
from zprof.tui.presenters.plan import build_fit_table, build_headline, build_peak_table, build_step_table
from zprof.tui.presenters.plan_knobs import collect_facts, list_knobs
from zprof.tui.presenters.plan_prediction import PlannedChange
from zprof.tui.session import LoadedRun

CHANGE = Change(stage=2, bandwidth_ratio=2.0)


@pytest.fixture(scope="module")
def planned(alone: LoadedRun) -> PlannedChange:
    return PlannedChange(
        change=CHANGE, words="stage 2, bandwidth x2", answer=predict(alone.analysis, (CHANGE,))
    )


def test_what_it_takes_as_measured_is_what_the_report_has(alone: LoadedRun, planned: PlannedChange) -> None:
    assert planned.prediction is not None
    shown = {
        line.key: line.cells[1]
        for table in (build_step_table(alone, planned), build_peak_table(alone, planned))
        for line in table.lines
    }
    entries = {entry.name.removesuffix("_bytes"): entry for entry in planned.prediction.memory}
    entries |= {entry.name: entry for entry in planned.prediction.step}
    assert {"wall_ns", "peak"} <= set(entries)
    for name, cell in shown.items():
        entry = entries.get(name.removesuffix("_bytes"))
        assert isinstance(cell, Figure)
        assert entry is None or cell.value == pytest.approx(entry.measured, abs=1), name


def test_all_of_it_has_a_place_and_says_its_assumption(alone: LoadedRun, planned: PlannedChange) -> None:
    for table in (build_step_table(alone, planned), build_peak_table(alone, planned)):
        known = [
            number
            for number in table.figures()
            if isinstance(number, ModelFigure) and number.value is not None
        ]
        assert known
        assert not [number for number in known if "not stated" in number.said]
    said = " ".join(word.text for word in build_headline(planned))
    assert said.startswith("~ PREDICTED stage 2, bandwidth x2:")
    assert "of memory" in said or "the peak stays" in said
    assert build_fit_table(planned).lines


def test_every_choice_of_every_knob_is_understood(alone: LoadedRun) -> None:
    knobs = list_knobs(collect_facts(alone, None), Change())
    changes = tuple(Change(**{knob.field: choice.value}) for knob in knobs for choice in knob.choices)
    outlook = predict(alone.analysis, changes)
    assert [one.change for one in outlook.predictions] == list(changes)
