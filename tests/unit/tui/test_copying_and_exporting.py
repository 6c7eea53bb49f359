"""``y``, ``Y``, ``e``, ``o``: what is on the clipboard, what is in the file, and no file is written over."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import app_on, play
from tests.support.tui_keys import pressed, shown
from zprof.model.errors import BadInput
from zprof.model.json_format import to_json as as_json_report
from zprof.tui.app import ZprofApp
from zprof.tui.export import (
    describe_copy,
    export_perfetto,
    export_report,
    find_free_name,
    focused_table,
    suggest_report_name,
)
from zprof.tui.number_popup import NumberPopup
from zprof.tui.session import LoadedRun, Selection


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_tmux_needs_a_word() -> None:
    assert "set-clipboard on" in describe_copy({"TMUX": "/tmp/tmux-0/default"})
    assert "OSC 52" in describe_copy({})
    assert all("e writes" in describe_copy(env) for env in ({}, {"TMUX": "x"}))


def test_the_terminal_is_asked(loaded: LoadedRun) -> None:
    written: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert app._driver is not None
        app._driver.write = written.append  # type: ignore[method-assign, assignment]
        await pressed(app, pilot, "Y")
        table = focused_table(app)
        assert table is not None
        assert table.table is not None
        assert set(json.loads(app.clipboard)) == {column.title for column in table.table.columns}
        assert any(text.startswith("\x1b]52;c;") for text in written)

    play(app_on(loaded), act)


def test_names_are_free() -> None:
    assert suggest_report_name("zero3", Path()) == "zero3-report.txt"
    Path("zero3-report.txt").touch()
    Path("zero3-report-2.txt").symlink_to("nowhere")
    assert suggest_report_name("zero3", Path()) == "zero3-report-3.txt"
    assert find_free_name("a", ".json", Path()) == "a.json"
    long = suggest_report_name("é" * 300 + "/\x1b", Path())
    Path(long).touch()
    assert "/" not in long


def test_a_suffix_is_a_format(loaded: LoadedRun) -> None:
    export_report(loaded, Path("a.json"))
    assert Path("a.json").read_text() == as_json_report(loaded.report)
    export_report(loaded, Path("a.TXT"))
    assert "SLOWER" in Path("a.TXT").read_text()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("there.txt", "is there already"),
        ("none.doc", "names no format"),
        ("no/such/folder.txt", "cannot be written"),
        ("x" * 300 + ".txt", "cannot be written"),
        ("a\0.txt", "cannot be written"),
    ],
)
def test_what_cannot_be_written(loaded: LoadedRun, name: str, says: str) -> None:
    Path("there.txt").write_text("mine")
    with pytest.raises(BadInput, match=says):
        export_report(loaded, Path(name))
    assert Path("there.txt").read_text() == "mine"
    assert [path.name for path in Path().iterdir()] == ["there.txt"]
    with pytest.raises(BadInput, match="measured"):
        export_report(None, Path("b.txt"))


def test_half_a_file_is_none(loaded: LoadedRun) -> None:
    with pytest.raises(BadInput, match="was not timed"):
        export_perfetto(loaded, Selection(rank=0, step=999), Path())
    assert not list(Path().iterdir())


def test_a_slice_is_the_step(loaded: LoadedRun) -> None:
    step = loaded.report.time.steps[0].step
    said = export_perfetto(loaded, Selection(rank=0, step=step), Path())
    path = Path(f"zero3-step{step}-all-ranks.json")
    assert said.startswith(f"wrote {path.absolute()} (step {step} of all loaded ranks: 0, 1)")
    assert ranks_of(path) == {0, 1}


def ranks_of(path: Path) -> set[int]:
    """The ranks whose names a trace has."""
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    return {int(found[1]) for name in names if (found := re.search(r"rank (\d+)", name))}


@pytest.mark.parametrize(("count", "whole"), [(16, True), (17, False)])
def test_a_slice_of_very_many_ranks_is_the_selected_one(loaded: LoadedRun, count: int, whole: bool) -> None:
    """And the message says so."""
    facts = replace(loaded.report.run, ranks_loaded=tuple(range(count)))
    many = replace(loaded, report=replace(loaded.report, run=facts))
    step = loaded.report.time.steps[0].step
    said = export_perfetto(many, Selection(rank=1, step=step), Path())
    (path,) = Path().iterdir()
    assert said.startswith(f"wrote {path.absolute()} (step {step} of ")
    if whole:
        assert "all loaded ranks" in said
        assert ranks_of(path) == {0, 1}
    else:
        assert f"rank 1 alone, {count} are too many for one trace" in said
        assert path.name == f"zero3-step{step}-rank1.json"
        assert ranks_of(path) == {1}


def test_the_report_is_written_from_a_popup(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await shown(app, pilot, "overview")
        await pressed(app, pilot, "right", "enter")
        assert isinstance(app.screen, NumberPopup)
        await pressed(app, pilot, "e", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.screen, NumberPopup)
        assert Path("zero3-report.txt").exists()
        (said,) = [note.message for note in app._notifications]
        assert said == f"wrote {Path('zero3-report.txt').absolute()}"
        await pressed(app, pilot, "e", "enter")
        await app.workers.wait_for_complete()
        assert Path("zero3-report-2.txt").exists()

    play(app_on(loaded), act, notifications=True)
