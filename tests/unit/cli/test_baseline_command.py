"""``zprof baseline``: what is saved, shown and updated, and what is left as it was."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.command_calls import Call
from zprof.checks.baseline import read_baseline
from zprof.cli.inputs import MeasuredRun

pytestmark = pytest.mark.usefixtures("diagnosed_once")


@pytest.fixture
def saved(runs: Path, tmp_path: Path) -> Path:
    return shutil.copy(runs / "good.json", tmp_path / "base.json")


def test_save_writes_zprof_baseline_json(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("baseline", "save", "RUNS/good.zprof")
    assert (code, out, "zprof-baseline.json" in err) == (0, "", True)
    baseline = read_baseline(tmp_path / "zprof-baseline.json")
    assert (baseline.name, baseline.conditions.world_size) == ("good", 2)
    assert baseline.time is not None
    assert len(baseline.time.wall_ns) == 5


def test_a_baseline_of_nothing_is_not_saved(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MeasuredRun.baseline

    def nothing(measured: MeasuredRun) -> object:
        return replace(whole(measured), memory=None, time=None, collectives=None)

    monkeypatch.setattr(MeasuredRun, "baseline", nothing)
    assert call("baseline", "save", "RUNS/good.zprof", "-o", tmp_path / "b.json")[0] == 3
    assert not (tmp_path / "b.json").exists()


def test_a_missing_rank_is_said(call: Call, runs: Path, saved: Path, tmp_path: Path) -> None:
    killed = shutil.copytree(runs / "good.zprof", tmp_path / "killed.zprof")
    shutil.rmtree(killed / "rank00001")
    for line in (("update", killed, saved), ("save", killed, "-o", tmp_path / "new.json")):
        code, _, err = call("baseline", *line)
        assert code == 0
        assert "timed steps, without rank 1" in err
    assert "timed steps, without" in call("baseline", "show", saved)[1]


def test_show_prints_the_file(call: Call, saved: Path) -> None:
    code, out, _ = call("baseline", "show", saved)
    assert code == 0
    assert out.split()[:2] == ["BASELINE", "good"]
    assert "step_time" in out
    assert call("baseline", "show", saved, "-f", "json")[1] == saved.read_text()


def test_update_prints_what_changes_and_writes_it(call: Call, saved: Path) -> None:
    code, out, err = call("baseline", "update", "RUNS/chatty.zprof", saved)
    assert (code, str(saved) in err) == (0, True)
    assert "all_gather count" in out
    assert read_baseline(saved).name == "chatty"
    code, out, _ = call("baseline", "update", "RUNS/chatty.zprof", saved)
    assert (code, "all_gather count" in out) == (0, False)


def test_update_refuses_other_conditions_unless_asked(call: Call, saved: Path) -> None:
    before = saved.read_text()
    code, out, err = call("baseline", "update", "RUNS/wide.zprof", saved)
    assert (code, out, saved.read_text()) == (2, "", before)
    assert "world size 3" in err
    code, out, _ = call("baseline", "update", "RUNS/wide.zprof", saved, "--any-conditions")
    assert (code, "world size" in out) == (0, True)
    assert json.loads(saved.read_text())["conditions"]["world_size"] == 3
