"""``zprof diagnose`` and ``zprof explain`` on runs as a user has them."""

import json
from pathlib import Path

import pytest

from tests.support.schedules import Spec, play, write
from zprof.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("a", "b"):
        spec = Spec(ranks=2, steps=4)
        write(folder / f"{name}.zprof", spec, play(spec))
    return folder


def test_the_answer_is_printed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(runs / "b.zprof"), "--baseline", str(runs / "a.zprof")]) == 0
    text = capsys.readouterr().out
    assert "WHERE THE TIME GOES" in text
    assert "WHAT TO CHANGE" in text


def test_json_is_the_report(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(runs / "b.zprof"), "-f", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema"] == "zprof.report/1"
    assert set(tree["unclaimed"]) >= {"exposed_wait_ns", "idle_ns"}


def test_tokens_of_both_runs_are_taken(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["--tokens-per-step", "4e3", "--baseline-tokens-per-step", "1000"]
    assert main(["diagnose", str(runs / "b.zprof"), "--baseline", str(runs / "a.zprof"), *said]) == 0
    text = capsys.readouterr().out
    assert text.startswith("✓ OK")
    assert "AT EQUAL WORK" in text
    assert "4 times the tokens" in text


def test_a_file_is_written_once(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "answer.json")
    assert main(["diagnose", str(runs / "b.zprof"), "-o", target]) == 0
    assert json.loads(Path(target).read_text())["verdict"]["status"]
    assert main(["diagnose", str(runs / "b.zprof"), "-o", target]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert main(["diagnose", str(runs / "b.zprof"), "-o", target, "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-f", "svg"], "formats: text, json"),
        (["-o", "answer.svg"], "its suffix names no format"),
        (["--tokens-per-step", "0"], "not a number"),
    ],
)
def test_what_cannot_be_is_refused(
    runs: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(runs / "b.zprof"), *words]) == 2
    assert said in capsys.readouterr().err


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "straggler-rank"]) == 0
    assert capsys.readouterr().out.startswith("ZP301 straggler_rank\n")
    assert main(["explain", "--list"]) == 0
    assert "ZP508 lost_compute_efficiency" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["ZP301", "--list"], ["ZP999"]])
def test_explain_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == 2
    assert "zprof explain" in capsys.readouterr().err
