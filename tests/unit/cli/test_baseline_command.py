"""``zprof baseline``: what is saved, shown and updated, and what is left as it was."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.schedules import Spec, play, write
from zprof.checks.baseline import read_baseline
from zprof.cli import main
from zprof.cli.inputs import MeasuredRun

pytestmark = pytest.mark.usefixtures("diagnosed_once")


def recorded(path: Path, spec: Spec) -> Path:
    return write(path, spec, play(spec))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recorded(folder / "good.zprof", Spec(ranks=2, steps=4))
    recorded(folder / "chatty.zprof", Spec(ranks=2, steps=4, units=5))
    recorded(folder / "wide.zprof", Spec(ranks=3, steps=4))
    return folder


@pytest.fixture
def saved(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    file = tmp_path / "base.json"
    assert main(["baseline", "save", str(runs / "good.zprof"), "-o", str(file)]) == 0
    capsys.readouterr()
    return file


def test_save_writes_where_it_says(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["baseline", "save", str(runs / "good.zprof")]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "zprof: wrote zprof-baseline.json\n")
    baseline = read_baseline(tmp_path / "zprof-baseline.json")
    assert (baseline.name, baseline.conditions.world_size) == ("good", 2)
    assert baseline.time is not None
    assert len(baseline.time.wall_ns) == 4


def test_save_overwrites_only_by_force(runs: Path, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text("mine")
    arguments = ["baseline", "save", str(runs / "good.zprof"), "-o", str(saved)]
    assert main(arguments) == 2
    assert saved.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert read_baseline(saved).name == "good"


def test_a_baseline_of_nothing_is_not_saved(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = MeasuredRun.baseline

    def nothing(measured: MeasuredRun) -> object:
        return replace(whole(measured), memory=None, time=None, collectives=None)

    monkeypatch.setattr(MeasuredRun, "baseline", nothing)
    assert main(["baseline", "save", str(runs / "good.zprof"), "-o", str(tmp_path / "b.json")]) == 3
    assert "nothing to save" in capsys.readouterr().err
    assert not (tmp_path / "b.json").exists()


def test_save_and_update_say_that_a_rank_is_missing(
    runs: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = tmp_path / "killed.zprof"
    shutil.copytree(runs / "good.zprof", killed)
    shutil.rmtree(killed / "rank00001")
    assert main(["baseline", "update", str(killed), str(saved)]) == 0
    printed = capsys.readouterr()
    assert "timed steps, without" in printed.out
    note = "zprof: not all of the run was seen, a check judges less by it: "
    assert [line for line in printed.err.splitlines() if line.startswith(note)] == [
        f"{note}exposed_wait, only a lower bound; timed steps, without rank 1"
    ]
    assert main(["baseline", "save", str(killed), "-o", str(tmp_path / "new.json")]) == 0
    assert "timed steps, without rank 1" in capsys.readouterr().err
    assert main(["baseline", "show", str(saved)]) == 0
    assert "timed steps, without" in capsys.readouterr().out


def test_show(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "show", str(saved)]) == 0
    text = capsys.readouterr().out
    assert text.split()[:2] == ["BASELINE", "good"]
    rows = dict(line.strip().split(None, 1) for line in text.splitlines() if line.startswith("  device"))
    assert rows == {"device": "cpu"}
    assert "step_time" in text
    assert main(["baseline", "show", str(saved), "-f", "json"]) == 0
    assert capsys.readouterr().out == saved.read_text()


def test_update_says_what_changes_and_writes_it(
    runs: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baseline", "update", str(runs / "chatty.zprof"), str(saved)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("WHAT CHANGES")
    assert "all_gather count" in printed.out
    assert printed.err == f"zprof: wrote {saved}\n"
    assert read_baseline(saved).name == "chatty"
    assert main(["baseline", "update", str(runs / "chatty.zprof"), str(saved)]) == 0
    assert capsys.readouterr().out.strip() == "Nothing changes."


def test_update_refuses_other_conditions_unless_asked(
    runs: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved.read_text()
    assert main(["baseline", "update", str(runs / "wide.zprof"), str(saved)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, saved.read_text()) == ("", before)
    assert "world size 3, the baseline has 2" in printed.err
    assert printed.err.count("\n") == 1
    assert main(["baseline", "update", str(runs / "wide.zprof"), str(saved), "--any-conditions"]) == 0
    assert "world size" in capsys.readouterr().out
    assert json.loads(saved.read_text())["conditions"]["world_size"] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["update", "RUN", "none.json"],
        ["update", "none.zprof", "BASE"],
        ["show", "none.json"],
        ["show", "RUN"],
        ["save", "none.zprof"],
        ["save", "RUN", "-o", "no/base.json"],
        ["show", "BASE", "-f", "xml"],
        ["remove", "BASE"],
        [],
    ],
)
def test_what_cannot_be_used_is_one_line_and_code_2(
    runs: Path,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(saved.parent)
    before = saved.read_text()
    said = {"RUN": str(runs / "good.zprof"), "BASE": str(saved)}
    assert main(["baseline", *(said.get(argument, argument) for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("zprof: ")
    assert printed.err.count("\n") == 1
    assert (saved.read_text(), [path.name for path in saved.parent.iterdir()]) == (before, ["base.json"])


@pytest.mark.parametrize("action", ["save", "show", "update"])
def test_each_action_has_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", action, "--help"]) == 0
    assert f"zprof baseline {action}" in capsys.readouterr().out
