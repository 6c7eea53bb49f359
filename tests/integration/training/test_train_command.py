"""``zprof train`` as it is typed: what it refuses, and what it says when nothing was kept."""

import subprocess
import sys
from pathlib import Path

import pytest

TINY = "--layers 1 --hidden 16 --heads 2 --vocabulary 16 --context 8 --batch 2"


def train(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zprof", "train", *TINY.split(), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "options",
    [
        "--batch 3",
        pytest.param("--steps 0", marks=pytest.mark.slow),
        pytest.param("--stage 7", marks=pytest.mark.slow),
        "--ranks 0",
        "--straggler-rank 5 --straggler-ms 40",
        pytest.param("--link-latency-us 5", marks=pytest.mark.slow),
        "--colour blue",
    ],
)
def test_bad_options_are_one_line_before_a_rank_starts(tmp_path: Path, options: str) -> None:
    done = train("-o", str(tmp_path / "x.zprof"), *options.split())
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("zprof: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "x.zprof").exists()


def test_a_run_is_not_overwritten_unasked_and_other_folders_never(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("")
    done = train("-o", str(tmp_path / "mine"), "--force")
    assert (done.returncode, (tmp_path / "mine/file").exists()) == (2, True)
    (tmp_path / "mine/manifest.json").write_text("{}")
    assert train("-o", str(tmp_path / "mine"), "--force").returncode == 2
    assert (tmp_path / "mine/file").exists()


@pytest.mark.ranks
def test_a_run_that_could_not_be_written_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = train("-o", str(tmp_path / "file/x.zprof"), "--steps", "1")
    assert done.returncode == 3
    assert "0 of 2 ranks were recorded" in done.stderr
