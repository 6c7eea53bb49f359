"""kill -9 of one rank in mid-run: the others stay readable, and the report names the one that is gone."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from zprof.cli import main
from zprof.integrations.reference_job import RankFailed, ReferenceJob, train_reference
from zprof.run.reader import load

TINY = {"layers": 2, "hidden": 32, "heads": 2, "vocabulary": 64, "context": 16, "batch": 4, "stage": 3}


def kill_rank_1_after(step: int, folder: Path) -> Path:
    run = folder / "killed.zprof"
    options = TINY | {"steps": 400}
    job = ReferenceJob(world_size=2, options=options, run=run, skip_steps=20, memory_steps=2, time_steps=370)
    process_ids: list[int] = []

    def kill(steps_done: int) -> None:
        if steps_done > step and process_ids:
            os.kill(process_ids.pop(), signal.SIGKILL)

    def started(ids: Sequence[int]) -> None:
        process_ids.append(ids[1])

    with pytest.raises(RankFailed, match="rank 1"):
        train_reference(job, on_step=kill, on_start=started)
    return run


@pytest.mark.slow
@pytest.mark.ranks
def test_before_it_wrote_a_table_the_rank_is_missing(tmp_path: Path) -> None:
    run = load(kill_rank_1_after(5, tmp_path))
    assert run.ranks == (0,)
    assert run.rank_manifests[0].status == "failed"
    assert [gap.rank for gap in run.gaps() if gap.what == "rank missing"] == [1]


@pytest.mark.ranks
def test_in_the_time_window_its_memory_is_kept_and_the_other_rank_has_its_times(tmp_path, capsys) -> None:
    path = kill_rank_1_after(40, tmp_path)
    run = load(path)
    assert run.ranks == (0, 1)
    assert len(run.rank_manifests[0].time_steps) > 10
    assert run.rank_manifests[1].memory_steps == (20, 21)
    assert [gap.rank for gap in run.gaps() if gap.what == "rank cut short"] == [1]
    assert all(len(run.frame(rank, "alloc")) > 0 for rank in run.ranks)
    assert main(["report", str(path)]) == 0
    assert "rank 1" in capsys.readouterr().out
