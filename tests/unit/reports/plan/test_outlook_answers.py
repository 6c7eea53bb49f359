"""The answer of an outlook: what it is sure of, the peak that a shorter step costs, what shows nothing."""

import re
from dataclasses import replace

from tests.support import plans
from zprof.model.planning.whatif import Change, Outlook, Prediction
from zprof.reports.plan.outlook import outlook_answers, outlook_figures
from zprof.reports.plan.prediction import saving_words
from zprof.reports.plan.prediction_tables import summary_grid

MS, MIB = 1_000_000, 1 << 20


def prediction(words: str, step_ms: float, saving_ms: tuple[float, float], peak_mib: int) -> Prediction:
    """Of a step of 380 ms and a peak of 301 MiB."""
    usual = plans.outlook().predictions[0]
    low, high = saving_ms
    step = tuple(
        replace(
            row, predicted=round(step_ms * MS), low=round((380 - high) * MS), high=round((380 - low) * MS)
        )
        if row.name == "wall_ns"
        else row
        for row in usual.step
    )
    memory = tuple(
        replace(row, predicted=peak_mib * MIB) if row.name == "peak_bytes" else row for row in usual.memory
    )
    return Prediction(
        change=Change(), words=words, step=step, memory=memory, saving_ns=(round(low * MS), round(high * MS))
    )


def answer(*found: Prediction) -> str:
    return outlook_answers(Outlook(predictions=found))[0]


def test_no_winner_is_named_where_no_range_is_shorter_throughout() -> None:
    said = answer(prediction("a", 300, (-36, 184), 100), prediction("b", 310, (-5, 150), 100))
    assert said.startswith(
        "None of 2 changes is certain to make the step shorter; the shortest predicted is: a:"
    )
    assert "One of the others lies in that range or below." in said


def test_a_change_that_saves_over_its_whole_range_comes_before_a_shorter_doubtful_one() -> None:
    said = answer(prediction("a", 300, (-36, 184), 100), prediction("b", 370, (2, 18), 100))
    assert "those that save time over their whole range: b:" in said
    assert "One of the others" in said


def test_a_higher_peak_stands_beside_the_shortest_step() -> None:
    higher = answer(prediction("a", 300, (70, 90), 402), prediction("b", 340, (30, 50), 100))
    assert ", with a higher peak: ~402.0 MiB where 301.0 MiB was measured." in higher
    assert "higher peak" not in answer(prediction("a", 300, (70, 90), 301))
    assert "of the others" not in higher


def test_one_change_says_how_sure_it_is() -> None:
    assert answer(prediction("a", 370, (-10, 30), 9)).startswith("Not certain to be shorter: a: a step of")
    assert answer(prediction("a", 400, (-30, -10), 9)).startswith("Longer over its whole range: a: a step of")
    assert answer(prediction("a", 300, (70, 90), 9)).startswith("a: a step of ~300.0 ms")


def test_nothing_saved_has_no_sign_and_no_range() -> None:
    assert saving_words((-20_000, 20_000)) == "~0.0"
    assert saving_words((-20_000, 120_000)) == "~0.0 to ~0.1"
    assert saving_words((-120_000, -60_000)) == "~-0.1"


def test_sizes_stand_in_no_column_of_milliseconds() -> None:
    (grid,) = summary_grid(plans.outlook())
    for place, column in enumerate(grid.columns):
        sizes = any(re.search("[KMGT]i?B", row.cells[place]) for row in grid.rows)
        assert sizes == (column.unit == "" and grid.unit == "")
        assert sizes != (column.unit == "ms")


def test_every_one_of_the_usual_changes_has_a_card() -> None:
    many = tuple(prediction(f"change {number}", 300, (70, 90), 9) for number in range(9))
    assert [name for name, *_ in outlook_figures(Outlook(predictions=many))] == [each.words for each in many]


def test_the_table_says_what_its_ranges_hold() -> None:
    (grid,) = summary_grid(plans.outlook())
    assert any("not the noise between two recordings" in note for note in grid.notes)
