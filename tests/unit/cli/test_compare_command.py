"""``zprof compare`` on runs as a user has them."""

import json
from pathlib import Path

import pytest

from tests.support.schedules import Spec, play, write
from zprof.cli import main


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    specs = {"a": Spec(ranks=2, steps=4), "b": Spec(ranks=2, steps=4)}
    return [str(write(folder / f"{name}.zprof", spec, play(spec))) for name, spec in specs.items()]


def test_text(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *pair]) == 0
    text = capsys.readouterr().out
    assert "\nSTEP " in text
    assert "DIFFERENT SETTINGS\n  None." in text


def test_json_has_all_rows_and_both_sides(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = ["--tokens-per-step", "1000", "--baseline-tokens-per-step", "500"]
    assert main(["compare", *pair, *said, "-f", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema"] == "zprof.compare/1"
    assert (tree["a"]["name"], tree["b"]["name"]) == ("a", "b")
    step = next(section for section in tree["sections"] if section["title"] == "step")
    assert {"name": "unexplained_ns", "unit": "ns", "a": 0, "b": 0} in step["rows"]
    work = next(section for section in tree["sections"] if section["title"] == "equal work")
    assert (work["rows"][0]["a"], work["rows"][0]["b"]) == (500, 1000)
    assert {"where": "training", "name": "tokens_per_step", "a": "500", "b": "1000"} in tree["settings"]


def test_a_file_by_its_suffix(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "both.json"
    assert main(["compare", *pair, "-o", str(target)]) == 0
    assert json.loads(target.read_text())["schema"] == "zprof.compare/1"
    assert main(["compare", *pair, "-o", str(target)]) == 2
    assert main(["compare", *pair, "-o", str(tmp_path / "both.svg")]) == 2
    assert "names no format" in capsys.readouterr().err


def test_one_run_is_too_few(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", pair[0]]) == 2
    assert main(["compare", pair[0], pair[1] + "x"]) == 2
    assert "no such" in capsys.readouterr().err
