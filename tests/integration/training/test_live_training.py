"""``--live`` on a terminal with real ranks: steps are seen while they come, and the run is the same."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.pty_terminal import PtyTerminal
from zprof.cli import main
from zprof.run.manifest import read_rank_manifest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TINY = "--layers 1 --hidden 16 --heads 2 --vocabulary 16 --context 8 --batch 2 --stage 3"
PLAN = "--skip-steps 150 --memory-steps 2 --time-steps 4"


@contextmanager
def terminal(*arguments: str) -> Iterator[PtyTerminal]:
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment["PYTHONPATH"] = str(ROOT)
    made = PtyTerminal([sys.executable, "-m", "zprof", *arguments], environment)
    try:
        yield made
    finally:
        made.close()


def rows(run: Path) -> list[dict[str, int]]:
    manifests = [read_rank_manifest(run, rank) for rank in range(2)]
    assert [manifest.status for manifest in manifests] == ["complete", "complete"]
    return [{name: file.rows for name, file in manifest.files.items()} for manifest in manifests]


@pytest.mark.ranks
def test_steps_are_seen_before_the_job_ends_and_the_run_is_the_same(tmp_path: Path) -> None:
    options = ["train", *TINY.split(), *PLAN.split(), "-o"]
    with terminal(*options, str(tmp_path / "live.zprof"), "--live") as screen:
        early = screen.wait_for("warming up, ")
        assert "job finished" not in early
        screen.wait_for("job finished")
        screen.press("q")
        assert screen.end() == 0
    assert main([*options, str(tmp_path / "alone.zprof")]) == 0
    assert rows(tmp_path / "live.zprof") == rows(tmp_path / "alone.zprof")


@pytest.mark.ranks
def test_ctrl_c_in_the_view_ends_the_ranks(tmp_path: Path) -> None:
    options = ["train", *TINY.split(), "--skip-steps", "100000", "-o", str(tmp_path / "x.zprof")]
    with terminal(*options, "--live") as screen:
        screen.wait_for("warming up, ")
        screen.press("\x03")
        assert screen.end() == 130
        with pytest.raises(ProcessLookupError):
            os.killpg(screen.pid, 0)
