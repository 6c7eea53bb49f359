"""``zprof hang``: dumps, folders, runs and what is none of them."""

import io
import json
import random
from pathlib import Path

import pytest

from benchmarks.hang_jobs import draw_job, write_dumps
from tests.support.hang_lines import write_default, write_signal
from zprof.cli import main
from zprof.model.hang import HangStatus


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_dumps(draw_job(40_000, "host_stuck"), tmp_path / "dumps")


def read_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "-f", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_folder_and_its_files_give_one_answer(
    dumps: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read_json(capsys, "hang", str(dumps[0].parent))
    listed = read_json(capsys, "hang", *map(str, dumps))
    assert whole["hang"] == listed["hang"]
    assert whole["hang"]["status"] == HangStatus.STUCK  # type: ignore[index]
    assert whole["verdict"]["sentence"].startswith("RISK stuck: ")  # type: ignore[index]
    assert [finding["id"] for finding in whole["findings"]] == ["ZP602"]  # type: ignore[attr-defined]
    assert read_json(capsys, "diagnose", str(dumps[0].parent))["hang"] == whole["hang"]


@pytest.mark.parametrize("command", ["report", "diagnose", "tui"])
def test_other_commands_take_dumps_too(
    dumps: list[Path], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(dumps[0].parent)]) == 0
    assert "wait for" in capsys.readouterr().out


def test_a_run_without_a_recorder_is_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.zprof"
    assert main(["simulate", "-o", str(run), "--ranks", "2", "--steps", "3"]) == 0
    capsys.readouterr()
    assert main(["hang", str(run)]) == 3
    assert "no flight recorder" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("start", [b"", b"{", b"[", b"\x1f\x8b", b"PK", b"\x80\x02"])
def test_a_file_that_is_no_dump_is_refused_in_one_line(
    start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What begins like a trace is announced as one before it is refused."""
    (tmp_path / "x").write_bytes(start + b"\0" + random.Random(7).randbytes(1000))
    assert main(["hang", str(tmp_path / "x")]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if "importing" not in line]) == 1


def test_a_run_that_is_not_there_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hang", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_text_gives_one_answer_in_all_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log, standard input, the folder of torchrun, and a Slurm log of two attempts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = [write_default(0, 9), write_default(1, 9), write_signal(2, 0, 8, 8)]
    (tmp_path / "job.log").write_text("".join(texts))
    for attempt, parts in (("attempt_0", [write_default(0, 3)]), ("attempt_1", texts)):
        for rank, text in enumerate(parts):
            folder = tmp_path / "logs/none_x/" / attempt / str(rank)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(text)
            (folder / "stdout.log").write_text("step 7\n")
    whole = read_json(capsys, "hang", str(tmp_path / "job.log"))["hang"]
    assert whole["kind"] == "host_stuck"  # type: ignore[index]
    states = {(each["rank"], each["state"]) for each in whole["ranks"]}  # type: ignore[index]
    assert states == {(0, "entered"), (1, "entered"), (2, "not_entered")}
    folder_hang = read_json(capsys, "hang", str(tmp_path / "logs"))["hang"]
    assert folder_hang["ranks"] == whole["ranks"]  # type: ignore[index]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(texts).encode())))
    assert read_json(capsys, "hang", "-")["hang"] == whole


def test_text_about_nothing_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.log").write_text("step 7 | loss 2.3\n" * 100)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    for argument in (str(tmp_path / "job.log"), "-"):
        assert main(["hang", argument]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "log" in err
