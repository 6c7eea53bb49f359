"""The tables of the Plan screen: each number is a leaf of the report with its outlook, or made of leaves."""

import json
from dataclasses import replace

import pytest

from tests.support.outlooks import MODEL, NO_MEMORY, foreseen
from tests.unit.tui.test_every_number import hold
from zprof.model.errors import BadInput
from zprof.model.json_format import to_json as render
from zprof.model.memory import Memory
from zprof.model.time import LEDGER_TERMS, Time
from zprof.model.whatif import Change, Outlook
from zprof.tui.background import Answer
from zprof.tui.export import format_json, format_markdown
from zprof.tui.figures import Figure, ModelFigure
from zprof.tui.presenters.plan import build_fit_table, build_peak_table, build_step_table
from zprof.tui.presenters.plan_prediction import PlannedChange
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Table, select_columns

CHANGE = Change(bandwidth_ratio=4.0, stage=2)
NARROW, WIDE = 57, 92


def planned(loaded: LoadedRun, change: Change = CHANGE) -> PlannedChange:
    return PlannedChange(change=change, words="stage 2", answer=foreseen(loaded.analysis, (change,)))


def tables(loaded: LoadedRun, found: PlannedChange) -> list[Table]:
    return [build_step_table(loaded, found), build_peak_table(loaded, found), build_fit_table(found)]


def row(table: Table, key: str) -> dict[str, str]:
    cells = next(line.cells for line in table.lines if line.key == key)
    return {column.title: cell.text for column, cell in zip(table.columns, cells, strict=True)}


def without(loaded: LoadedRun, *, time: bool = False, memory: bool = False) -> LoadedRun:
    """The same with no time, or no memory, measured."""
    report, analysis = loaded.report, loaded.analysis
    if time:
        report, analysis = replace(report, time=Time()), replace(analysis, time=Time())
    if memory:
        report, analysis = replace(report, memory=Memory()), replace(analysis, memory=Memory())
    return replace(loaded, report=report, analysis=analysis)


@pytest.mark.parametrize("change", [Change(), CHANGE, Change(even=True, micro_batches=2)], ids=str)
def test_every_number_is_a_leaf_of_the_report_that_is_written(loaded: LoadedRun, change: Change) -> None:
    found = planned(loaded, change)
    tree = json.loads(render(replace(loaded.report, outlook=found.outlook)))
    numbers = [number for table in tables(loaded, found) for number in table.figures()]
    assert len([number for number in numbers if isinstance(number, ModelFigure)]) > 50
    hold(tree, numbers)


def test_measured_numbers_are_those_that_the_prediction_starts_from(loaded: LoadedRun) -> None:
    found = planned(loaded)
    assert found.prediction is not None
    shown = {line.key: line.cells[1] for table in tables(loaded, found)[:2] for line in table.lines}
    for entry in (*found.prediction.step, *found.prediction.memory):
        number = shown.get(entry.name)
        assert number is None or isinstance(number, Figure)
        assert number is None or number.value == pytest.approx(entry.measured, abs=1)


def test_measured_modelled_and_predicted_stand_side_by_side(loaded: LoadedRun) -> None:
    step = build_step_table(loaded, planned(loaded))
    assert row(step, "wall_ns") == {
        "term": "= step",
        "measured": "323.5",
        "model": "291.1",
        "error": "-10.0 %",
        "predicted": "~241.0",
        "range": "~216.9..265.1",
        "change": "~-82.5",
        "baseline": "200.3",
    }
    assert row(build_peak_table(loaded, planned(loaded)), "peak_bytes")["change"] == "~+1.5 MiB"
    assert pytest.approx(0.9) == MODEL


def test_terms_that_are_nothing_are_left_out_but_for_those_that_are_predicted(loaded: LoadedRun) -> None:
    names = [line.key for line in build_step_table(loaded, planned(loaded)).lines]
    assert "exposed_memcpy_ns" not in names
    assert set(names) <= {*LEDGER_TERMS, "wall_ns"}
    found = planned(loaded)
    assert found.outlook is not None
    assert found.prediction is not None
    step = tuple(
        replace(entry, predicted=9_000_000) if entry.name == "exposed_memcpy_ns" else entry
        for entry in found.prediction.step
    )
    outlook = replace(found.outlook, predictions=(replace(found.prediction, step=step),))
    assert (
        row(build_step_table(loaded, replace(found, answer=outlook)), "exposed_memcpy_ns")["predicted"]
        == "~9.0"
    )


def test_every_predicted_number_has_the_sign_and_no_other_has(loaded: LoadedRun) -> None:
    for table in tables(loaded, planned(loaded)):
        for number in table.figures():
            is_predicted = isinstance(number, ModelFigure) and number.is_predicted
            assert number.text.startswith("~") == is_predicted, number


def test_every_predicted_number_says_what_it_rests_on(loaded: LoadedRun) -> None:
    cells = {name: cell for table in tables(loaded, planned(loaded)) for name, cell in predicted(table)}
    said = cells["exposed_transfer_ns"].said
    for part in (
        "PREDICTED, not measured, for: stage 2",
        "measured            110.0 ms",
        "model of this run   99.0 ms",
        "predicted           ~27.5 ms, range ~24.7..30.2 ms",
        "formula    t = sum of units",
        "source     a test",
        "deviation  no engine does this",
        "error on this run  -10.0 % (model / measured - 1)",
        "outlook.predictions[0].step[",
    ):
        assert part in said, said
    assert "deviation  none" in cells["peak_bytes"].said
    assert "error on this run  none" not in cells["wall_ns"].said


def predicted(table: Table) -> list[tuple[str, ModelFigure]]:
    return [
        (line.key, cell)
        for line in table.lines
        for cell in line.cells
        if isinstance(cell, ModelFigure) and cell.leaves[0].endswith(".predicted")
    ]


def test_an_assumption_that_is_not_stated_is_said_to_be(loaded: LoadedRun) -> None:
    found = planned(loaded)
    assert found.outlook is not None
    bare = replace(found, answer=replace(found.outlook, assumptions={}))
    assert (
        "assumption  step.wall: not stated" in dict(predicted(build_step_table(loaded, bare)))["wall_ns"].said
    )


def test_no_tenant_and_no_unit_is_taken_for_another(loaded: LoadedRun) -> None:
    """Names may carry their unit."""
    found = planned(loaded)
    assert found.outlook is not None
    assert found.prediction is not None
    named = tuple(
        replace(entry, name=f"{entry.name.removesuffix('_bytes')}_bytes") for entry in found.prediction.memory
    )
    outlook = replace(found.outlook, predictions=(replace(found.prediction, memory=named),))
    again = replace(found, answer=outlook)
    assert [[cell.text for cell in line.cells] for line in build_peak_table(loaded, again).lines] == [
        [cell.text for cell in line.cells] for line in build_peak_table(loaded, found).lines
    ]


@pytest.mark.parametrize(
    ("answer", "shown", "said"),
    [
        (None, "...", ""),
        (
            BadInput("stage 4: 0 to 3", hint="see --help"),
            "unknown",
            "stage 4: 0 to 3; what helps: see --help",
        ),
        (Outlook(gaps=(NO_MEMORY,)), "unknown", "no memory was recorded; what helps: record in full mode"),
    ],
    ids=["asked", "refused", "gap"],
)
def test_what_is_not_there_is_never_0(
    loaded: LoadedRun, answer: Answer | None, shown: str, said: str
) -> None:
    found = PlannedChange(change=CHANGE, words="stage 2", answer=answer)
    for table in tables(loaded, found)[:2]:
        assert table.lines
        for line in table.lines:
            assert {cell.text for cell in line.cells[2:7]} == {shown}
            assert line.cells[1].text not in (shown, "0")
        if said:
            (cell,) = {cell for cell in table.lines[0].cells[2:7]}
            assert isinstance(cell, ModelFigure)
            assert said in cell.said
            assert cell.leaves, "it opens, and says why"
    assert not build_fit_table(found).lines


def test_half_a_run_has_half_a_prediction(loaded: LoadedRun) -> None:
    no_time = without(loaded, time=True)
    assert not build_step_table(no_time, planned(no_time)).lines
    assert row(build_peak_table(no_time, planned(no_time)), "peak_bytes")["predicted"] == "~11.5 MiB"
    no_memory = without(loaded, memory=True)
    assert not build_peak_table(no_memory, planned(no_memory)).lines
    assert row(build_step_table(no_memory, planned(no_memory)), "wall_ns")["predicted"] == "~241.0"


def test_columns_by_width(loaded: LoadedRun) -> None:
    step = build_step_table(loaded, planned(loaded))

    def titles(width: int) -> list[str]:
        return [step.columns[place].title for place in select_columns(step, width)]

    assert titles(NARROW) == ["term", "measured", "predicted", "change"]
    assert titles(WIDE) == ["term", "measured", "model", "error", "predicted", "range", "change"]


def test_copies_say_that_it_is_predicted(loaded: LoadedRun) -> None:
    table = build_step_table(loaded, planned(loaded))
    line = table.lines[-1]
    copied = json.loads(format_json(table, line, line.cells[0]))
    assert copied["predicted"]["is"] == "predicted"
    assert copied["predicted"]["assumption"] == "step.wall"
    assert copied["range"]["shown"] == "~216.9..265.1"
    assert copied["model"]["is"] == "modelled"
    assert "is" not in copied["measured"]
    assert "~241.0 |" in format_markdown(table, line, line.cells[0])


def test_the_fit_says_what_the_model_took(loaded: LoadedRun) -> None:
    table = build_fit_table(planned(loaded))
    assert {line.key: line.cells[1].text for line in table.lines} == {
        "units": "6",
        "passes": "2",
        "forward_ns": "16.0 ms",
        "backward_ns": "32.0 ms",
        "optimizer_ns": "3.0 ms",
        "skew_ns": "400.0 µs",
        "prefetch": "0",
        "steps": "5",
        "outlook.calibration.links[0].latency_ns": "61.0 µs",
        "outlook.calibration.links[0].busbw_bytes_per_s": "410.0 MB/s",
    }
    assert table.note == "rank 1 is the slowest"
