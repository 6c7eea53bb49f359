"""``zprof whatif``: every option reaches the change, and the answer goes to stdout."""

import argparse
import json
from pathlib import Path

import pytest

from tests.support.schedules import Spec, play, write
from zprof.cli import main
from zprof.cli.whatif import add_change_options, read_change
from zprof.model.whatif import Change

RUNS = Path(__file__).parents[2] / "data/tui"


def change(*options: str) -> Change | None:
    parser = argparse.ArgumentParser()
    add_change_options(parser)
    return read_change(parser.parse_args(list(options)))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--stage", "0"], Change(stage=0)),
        (["--prefetch", "0"], Change(prefetch=0)),
        (["--keep", "none"], Change(keep_after_forward="none")),
        (["--overlap-reduce", "off"], Change(overlap_reduce=False)),
        (["--overlap-gather", "on"], Change(overlap_gather=True)),
        (["--bandwidth", "x2"], Change(bandwidth_ratio=2.0)),
        (["--latency", "x0.5"], Change(latency_ratio=0.5)),
        (["--merge-units", "2"], Change(units_merged=2)),
        (["--micro-batches", "4"], Change(micro_batches=4)),
        (["--reduce-bytes", "4"], Change(element_bytes_reduced=4)),
        (["--even"], Change(even=True)),
        (["--shard-ranks", "8"], Change(shard_ranks=8)),
        (["--stage", "2", "--bandwidth", "x2"], Change(stage=2, bandwidth_ratio=2.0)),
        ([], None),
    ],
)
def test_an_option_is_a_field_of_the_change(options: list[str], wanted: Change | None) -> None:
    assert change(*options) == wanted


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(ranks=2, steps=4)
    return write(tmp_path_factory.mktemp("runs") / "good.zprof", spec, play(spec))


@pytest.mark.parametrize("options", [["--stage", "2"], []])
def test_the_answer_is_a_document_whatever_can_be_predicted(
    run: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert main(["whatif", str(run), *options, "-f", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema"] == "zprof.whatif/1"
    outlook = tree["outlook"]
    assert outlook["predictions"] or outlook["gaps"]
    if options:
        assert all(entry["change"]["stage"] == 2 for entry in outlook["predictions"])


def test_a_recorded_run_is_predicted_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(RUNS / "zero3"), "--stage", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("~ ")
    assert max(map(len, printed.out.splitlines())) <= 80
    assert "~" in printed.out or "Not known" in printed.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bandwidth", "2"], "such as x2"),
        (["--latency", "x0"], "such as x2"),
        (["--stage", "5"], "invalid choice"),
        (["--keep", "some"], "invalid choice"),
        (["--shard-ranks", "0"], "must be 1 or more"),
        (["-f", "junit"], "formats: text, json, md, html"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    run: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["whatif", str(run), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_no_run_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(tmp_path / "none.zprof")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_more_units_merged_than_there_are_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(RUNS / "zero3"), "--merge-units", "100"]) != 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "units merged 100: the run has" in said.err
    assert said.err.count("\n") == 1
