"""``-o``: the suffix chooses the format, a file that is there stays without ``--force``."""

from pathlib import Path

import pytest

from tests.support.command_calls import Call
from zprof.analysis import analysis as analysing

pytestmark = pytest.mark.usefixtures("diagnosed_once")


@pytest.mark.parametrize(
    ("line", "suffix", "start"),
    [
        ("report RUNS/good.zprof", ".json", "{"),
        ("check RUNS/good.zprof --baseline RUNS/good.json", ".sarif", "{"),
        ("baseline save RUNS/good.zprof", ".json", "{"),
        ("plan --params 1B", ".md", "## "),
        ("plan --params 1B", ".html", "<!DOCTYPE"),
        ("plan --params 1B -f md", ".json", "## "),
        ("schema check", ".json", "{"),
    ],
)
def test_a_file_is_written_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, suffix: str, start: str
) -> None:
    monkeypatch.chdir(tmp_path)  # no limits of this repository
    target = tmp_path / f"out{suffix}"
    code, out, err = call(*line.split(), "-o", target)
    assert (code, bool(out)) == (0, line.startswith("check")), "a check prints its page all the same"
    assert str(target) in err
    text = target.read_text()
    assert text.lstrip().startswith(start)
    target.write_text("mine")
    code, _, err = call(*line.split(), "-o", target)
    assert (code, target.read_text()) == (2, "mine")
    assert "--force" in err
    assert call(*line.split(), "-o", target, "--force")[0] == 0
    assert target.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("command", ["report", "diagnose", "compare RUNS/good.zprof", "whatif", "check"])
def test_one_analysis_writes_several_files(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    made: list[Path] = []
    real = analysing.analyse
    monkeypatch.setattr(analysing, "analyse", lambda run, *args: made.append(run.path) or real(run, *args))
    code, out, _ = call(*command.split(), "RUNS/again.zprof", "-o", "a.html", "-o", "a.md", "-o", "a.txt")
    assert (code, bool(out)) == (0, command == "check")
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE")
    assert (tmp_path / "a.md").read_text().startswith("## ")
    headings = [line for line in (tmp_path / "a.txt").read_text().splitlines() if line[:2].isupper()]
    assert max(map(len, headings)) <= 80, "the terminal is not what a file is for"
    assert len(made) == len(set(made))


@pytest.mark.parametrize("files", ["-o a.html -o a.html", "-o a.html -o nowhere/a.md", "-o a.html -o a.xyz"])
def test_all_targets_are_checked_before_the_analysis(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("report", "no-such.zprof", *files.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no-such.zprof" not in err
    assert list(tmp_path.iterdir()) == []


def test_one_format_for_several_files_is_refused(call: Call, tmp_path: Path) -> None:
    line = ["report", "RUNS/good.zprof", "-f", "json", "-o", tmp_path / "a.html", "-o", tmp_path / "a.md"]
    code, _, err = call(*line)
    assert (code, "-f json" in err, list(tmp_path.iterdir())) == (2, True, [])


@pytest.mark.parametrize(
    ("columns", "width"),
    [("120", 120), ("100", 100), ("", 80), ("9" * 40, 120), ("7", 60), ("-5", 80), ("0", 80), ("wide", 80)],
)
def test_a_pipe_has_the_width_of_columns(
    call: Call, monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = call("diagnose", "RUNS/again.zprof", "RUNS/good.zprof")
    heading = next(line for line in out.splitlines() if line.startswith("WHERE THE TIME GOES"))
    assert len(heading) == width
