"""Copies, reports and traces that the terminal UI writes: their content, and no file is overwritten."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.json_format import to_json
from zprof.tui.export import (
    export_perfetto,
    export_report,
    find_free_name,
    suggest_report_name,
)
from zprof.tui.session import LoadedRun, Selection


@pytest.fixture(autouse=True)
def _work_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read_events(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["traceEvents"])


def read_ranks(path: Path) -> set[int]:
    return {event["pid"] for event in read_events(path) if event["name"] == "process_name"}


def test_suggested_names_are_free() -> None:
    assert suggest_report_name("zero3", Path()) == "zero3-report.txt"
    Path("zero3-report.txt").touch()
    Path("zero3-report-2.txt").symlink_to("nowhere")
    assert suggest_report_name("zero3", Path()) == "zero3-report-3.txt"
    assert find_free_name("a", ".json", Path()) == "a.json"
    long = suggest_report_name("é" * 300 + "/\x1b", Path())
    Path(long).touch()
    assert "/" not in long


def test_the_suffix_picks_the_format(loaded: LoadedRun) -> None:
    export_report(loaded, Path("a.json"))
    assert Path("a.json").read_text() == to_json(loaded.report)
    export_report(loaded, Path("a.TXT"))
    assert "ZP401" in Path("a.TXT").read_text()
    export_report(loaded, Path("a.html"))
    assert 'id="step-figure"' in Path("a.html").read_text(), "the step of all ranks is drawn"


@pytest.mark.parametrize(
    "name", ["there.txt", "none.doc", "no/such/folder.txt", "x" * 300 + ".txt", "a\0.txt"]
)
def test_what_cannot_be_written_is_refused_and_leaves_no_file(loaded: LoadedRun, name: str) -> None:
    Path("there.txt").write_text("mine")
    with pytest.raises(BadInput):
        export_report(loaded, Path(name))
    assert Path("there.txt").read_text() == "mine"
    with pytest.raises(BadInput):
        export_report(None, Path("b.txt"))
    with pytest.raises(BadInput):
        export_perfetto(loaded, Selection(rank=0, step=999), Path())
    assert [path.name for path in Path().iterdir()] == ["there.txt"]


@pytest.mark.parametrize(("count", "ranks"), [(2, {0, 1}), (16, {0, 1}), (17, {1})])
def test_a_slice_of_more_than_16_ranks_is_that_of_the_selected_one(
    loaded: LoadedRun, count: int, ranks: set[int]
) -> None:
    facts = replace(loaded.report.run, ranks_loaded=tuple(range(count)))
    many = replace(loaded, report=replace(loaded.report, run=facts))
    step = loaded.report.time.steps[0].step
    message = export_perfetto(many, Selection(rank=1, step=step), Path())
    (path,) = Path().iterdir()
    assert str(path.absolute()) in message
    assert path.name == f"zero3-step{step}-{'rank1' if ranks == {1} else 'all-ranks'}.json"
    assert read_ranks(path) == ranks


def test_a_slice_is_the_step_as_it_is_shown_and_never_replaces_a_file(alone: LoadedRun) -> None:
    step = alone.report.time.steps[-1]
    export_perfetto(alone, Selection(rank=step.rank, step=step.step), Path())
    (path,) = Path().iterdir()
    before = path.read_bytes()
    events = [event for event in read_events(path) if event.get("pid") == step.rank]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    durations = [
        event["dur"] for event in events if event["ph"] == "X" and rows[event["tid"]] == "exposed transfer"
    ]
    assert sum(round(float(duration) * 1000) for duration in durations) == step.exposed_transfer_ns
    export_perfetto(alone, Selection(rank=step.rank, step=step.step), Path())
    assert len(list(Path().iterdir())) == 2
    assert path.read_bytes() == before
