"""What a job writes is kept: in its run, or beside where there is none."""

from pathlib import Path

import pytest

from tests.support.growing_run import GrowingRun
from zprof.cli.live_view import JOB_LOG, job_log, print_log_tail
from zprof.model.errors import BadInput


def test_it_goes_into_the_run(tmp_path: Path) -> None:
    run = tmp_path / "folder" / "run.zprof"
    with job_log(run) as (path, file):
        file.write(b"loss 3\n")
        file.flush()
        assert path.read_bytes() == b"loss 3\n"
        GrowingRun(run)
    assert (run / JOB_LOG).read_bytes() == b"loss 3\n"
    assert [each.name for each in run.parent.iterdir()] == ["run.zprof"]


def test_without_a_run_it_stays_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with job_log(tmp_path / "run.zprof") as (path, file):
        file.write(b"ImportError\n")
    assert path.read_bytes() == b"ImportError\n"
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "run.zprof").exists()


def test_nothing_is_kept_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with job_log(tmp_path / "run.zprof"):
        pass
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_where_nothing_can_be_written_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"), job_log(tmp_path / "file/run"):
        pass


def test_its_end_is_told_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" * 100 + b"\x1b[2Jlast\n")
    print_log_tail(path)
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (20, "  \\x1b[2Jlast")
