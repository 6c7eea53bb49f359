"""``zprof export``: what it writes where, and what it refuses in one line."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.schedules import Spec, play, write
from zprof.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(ranks=2, steps=3, units=2)
    return write(tmp_path_factory.mktemp("runs") / "good.zprof", spec, play(spec))


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_writes_both_suffixes_and_says_what_is_next(capsys, run, tmp_path):
    plain, packed = tmp_path / "a.json", tmp_path / "b.json.gz"
    code, out, err = outcome(capsys, "export", run, "--perfetto", plain)
    assert (code, out) == (0, "")
    assert "2 ranks" in err
    assert "ui.perfetto.dev" in err
    assert outcome(capsys, "export", run, "--perfetto", packed)[0] == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert json.loads(plain.read_bytes())["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json.gz"]


def test_steps_and_ranks_are_lists_and_ranges(capsys, run, tmp_path):
    target = tmp_path / "a.json"
    code, _, err = outcome(capsys, "export", run, "--perfetto", target, "--steps", "0-1", "--ranks", "1")
    assert (code, "1 rank," in err) == (0, True)
    events = json.loads(target.read_bytes())["traceEvents"]
    assert {event["pid"] for event in events} == {1}
    assert {event["name"] for event in events if event["name"].startswith("step ")} == {"step 0", "step 1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--perfetto"),
        (["--perfetto", "x.svg"], ".json"),
        (["--perfetto", "nowhere/x.json"], "no such folder"),
        (["--perfetto", "x.json", "--steps", "77"], "77"),
        (["--perfetto", "x.json", "--steps", "5-3"], "5-3"),
        (["--perfetto", "x.json", "--steps", "a"], "a"),
        (["--perfetto", "x.json", "--ranks", "0,9"], "9"),
        (["--perfetto", "x.json", "--ranks", "0-99999999999"], "99999999999"),
        (["--chrome", "x.json"], "--chrome"),
    ],
)
def test_refused_in_one_line_and_nothing_is_left(capsys, run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = outcome(capsys, "export", run, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays(capsys, run, tmp_path):
    target = tmp_path / "a.json"
    target.write_text("mine")
    code, _, err = outcome(capsys, "export", run, "--perfetto", target)
    assert (code, target.read_text(), "--force" in err) == (2, "mine", True)
    assert outcome(capsys, "export", run, "--perfetto", target, "--force")[0] == 0
    assert target.read_text() != "mine"
