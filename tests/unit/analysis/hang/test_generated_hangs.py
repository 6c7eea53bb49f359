"""Jobs that hang, from a simulator that knows nothing of the analysis: class and ranks, and nobody else."""

import shutil
from pathlib import Path

import pytest

from benchmarks.hang_jobs import FAULTS, HEALTHY, draw_job, write_dumps
from benchmarks.hangs import Case, compare, judge, judge_case
from zprof.analysis.hang.find_hang import find_hang
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangStatus
from zprof.run.reader import Run

#: Jobs of up to 128 ranks; that of the other seed has 16 at most.
LARGER = (20_001, 20_002)


@pytest.mark.parametrize("fault", [*FAULTS, *HEALTHY])
@pytest.mark.parametrize("seed", [20_032, *(pytest.param(seed, marks=pytest.mark.slow) for seed in LARGER)])
def test_class_and_ranks_are_those_that_were_planted(fault: str, seed: int) -> None:
    verdict = judge_case(Case(seed, fault))
    assert not verdict.error
    assert not verdict.accused
    assert verdict.is_right, (verdict.truth, verdict.hang)


@pytest.mark.parametrize(
    ("fault", "seed"),
    [("circular_wait", 5), ("circular_wait", 65), ("never_entered", 85), ("skipped_and_shifted", 14)],
)
def test_in_a_pair_its_own_order_tells_who_left_it(fault: str, seed: int) -> None:
    """Most ranks wait for the victim, which waits for the rank that skipped the operation of the two."""
    verdict = judge_case(Case(seed, fault, has_pairs=True))
    assert verdict.hang is not None
    assert {each.rank for each in verdict.hang.culprits} >= set(verdict.truth.planted)
    assert verdict.is_right


def is_sure(hang: Hang) -> bool:
    return hang.status is HangStatus.STUCK and hang.confidence is not Confidence.LOW


@pytest.mark.parametrize("fault", ["host_stuck", "device_stopped", "never_entered"])
def test_without_a_dump_nobody_else_is_accused(fault: str, tmp_path: Path) -> None:
    job = draw_job(30_003, fault)
    paths = write_dumps(job, tmp_path / "dumps")
    allowed = {rank for ranks in job.truth.culprits for rank in ranks}
    for left_out in paths[:6]:
        kept = tmp_path / "kept"
        shutil.copytree(tmp_path / "dumps", kept)
        (kept / left_out.name).unlink()
        hang = judge(kept)
        shutil.rmtree(kept)
        if is_sure(hang):
            assert {culprit.rank for culprit in hang.culprits} <= allowed


def test_the_order_of_the_files_says_nothing(tmp_path: Path) -> None:
    job = draw_job(30_001, "circular_wait")
    paths = write_dumps(job, tmp_path)
    runs = [
        import_paths(order, tmp_path / f"{name}.zprof") for name, order in (("a", paths), ("b", paths[::-1]))
    ]
    first, second = (find_hang(Run(imported.run)) for imported in runs)
    assert first == second
    assert first is not None
    assert compare(job.truth, first).is_right


def test_every_waiting_rank_leads_to_a_culprit(tmp_path: Path) -> None:
    hang = judge_dumps(tmp_path, 30_002, "host_stuck")
    culprits = {culprit.rank for culprit in hang.culprits}
    reached = set(culprits)
    for _ in range(len(hang.waits) + 1):
        reached |= {
            rank for wait in hang.waits if reached.intersection(wait.for_ranks) for rank in wait.ranks
        }
    assert set(hang.victims) <= reached
    assert not culprits.intersection(hang.victims)


def judge_dumps(folder: Path, seed: int, fault: str) -> Hang:
    write_dumps(draw_job(seed, fault), folder)
    return judge(folder)
