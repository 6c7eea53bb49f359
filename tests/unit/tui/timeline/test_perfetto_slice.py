"""``o`` writes the step that the timeline shows, measured as it is shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from zprof.integrations.perfetto import export as exporter
from zprof.model.time import WindowPolicy
from zprof.run.reader import load as open_run
from zprof.tui.export import export_perfetto
from zprof.tui.session import LoadedRun, RunRequest, Selection, load, pick_selection


def written(folder: Path) -> list[dict[str, object]]:
    (path,) = folder.glob("*.json")
    return list(json.loads(path.read_text())["traceEvents"])


def test_the_step_is_the_one_on_the_screen(
    device_job: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slices are as long as its leaf says; nothing is measured anew."""
    monkeypatch.setattr(exporter, "analyse_time", lambda run: pytest.fail("it was measured already"))
    step = device_job.report.time.steps[-1]
    export_perfetto(device_job, Selection(rank=step.rank, step=step.step), tmp_path)
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]  # type: ignore[index]
        for event in written(tmp_path)
        if event["name"] == "thread_name"
    }
    moving = [
        event["dur"]
        for event in written(tmp_path)
        if event["ph"] == "X"
        and event["pid"] == step.rank
        and rows[event["pid"], event["tid"]] == "exposed transfer"
    ]
    assert sum(round(float(str(dur)) * 1000) for dur in moving) == step.exposed_transfer_ns


def test_all_of_a_trace_as_one_step(device_job: LoadedRun, tmp_path: Path) -> None:
    asked = RunRequest(path=device_job.run.path, opener=open_run, policy=WindowPolicy.TRACE)
    whole = load(asked, lambda doing: None)
    assert "wrote" in export_perfetto(whole, pick_selection(whole.report), tmp_path)
    assert len(written(tmp_path)) > 100


def test_never_over_a_file(device_job: LoadedRun, tmp_path: Path) -> None:
    selected = pick_selection(device_job.report)
    export_perfetto(device_job, selected, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    export_perfetto(device_job, replace(selected), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert all(path.read_bytes() == content for path, content in before.items())
