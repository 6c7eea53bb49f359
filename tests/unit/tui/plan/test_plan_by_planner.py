"""The planner's own answer on the screen's tables: on a frozen run, by the seam that the app uses."""

import pytest

from zprof.model.planning.whatif import Change
from zprof.tui.figures import Figure
from zprof.tui.plan.fit import fit_table
from zprof.tui.plan.foreseen import Foreseen
from zprof.tui.plan.head import headline
from zprof.tui.plan.knobs import facts_of, knobs_of
from zprof.tui.plan.planned import Planned
from zprof.tui.plan.predicting import predict
from zprof.tui.plan.tables import peak_table, step_table
from zprof.tui.session import Loaded

CHANGE = Change(stage=2, bandwidth_ratio=2.0)


@pytest.fixture(scope="module")
def planned(alone: Loaded) -> Planned:
    return Planned(change=CHANGE, words="stage 2, bandwidth x2", answer=predict(alone.analysis, (CHANGE,)))


def test_what_it_takes_as_measured_is_what_the_report_has(alone: Loaded, planned: Planned) -> None:
    assert planned.prediction is not None
    shown = {
        line.key: line.cells[1]
        for table in (step_table(alone, planned), peak_table(alone, planned))
        for line in table.lines
    }
    entries = {entry.name.removesuffix("_bytes"): entry for entry in planned.prediction.memory}
    entries |= {entry.name: entry for entry in planned.prediction.step}
    assert {"wall_ns", "peak"} <= set(entries)
    for name, cell in shown.items():
        entry = entries.get(name.removesuffix("_bytes"))
        assert isinstance(cell, Figure)
        assert entry is None or cell.value == pytest.approx(entry.measured, abs=1), name


def test_all_of_it_has_a_place_and_says_its_assumption(alone: Loaded, planned: Planned) -> None:
    for table in (step_table(alone, planned), peak_table(alone, planned)):
        known = [
            number for number in table.figures() if isinstance(number, Foreseen) and number.value is not None
        ]
        assert known
        assert not [number for number in known if "not stated" in number.said]
    said = " ".join(word.text for word in headline(planned))
    assert said.startswith("~ PREDICTED stage 2, bandwidth x2:")
    assert "of memory" in said or "the peak stays" in said
    assert fit_table(planned).lines


def test_every_choice_of_every_knob_is_understood(alone: Loaded) -> None:
    knobs = knobs_of(facts_of(alone, None), Change())
    changes = tuple(Change(**{knob.field: choice.value}) for knob in knobs for choice in knob.choices)
    outlook = predict(alone.analysis, changes)
    assert [one.change for one in outlook.predictions] == list(changes)
