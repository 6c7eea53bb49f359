"""A lost event costs the replay its own row: the other ranks stay together, and the rank's call shows it."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.diagnoses import base
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.analysis.columns import Columns, Groups, Texts
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.run.reader import load
from zprof.simulator.ground_truth import write_job
from zprof.simulator.regular import plant
from zprof.step.from_recording import build_graph
from zprof.step.play import play_graph
from zprof.step.tasks import NONE, Graph, RankTasks, merge_orders
from zprof.step.waits import fill_lost_members

COMPUTE, COMM = 7, 20
LAUNCH, RECORD = "cudaLaunchKernelExC", "cudaEventRecord"


@pytest.mark.parametrize(
    ("orders", "merged"),
    [
        ([[0, 2], [0, 1, 2]], [0, 1, 2]),
        ([[0, 1, 3], [0, 2, 3], [1, 2]], [0, 1, 2, 3]),
        ([[], [4, 5]], [4, 5]),
        ([[0, 1], [1, 0]], None),
    ],
)
def test_orders_that_lack_some_make_one(orders: list[list[int]], merged: list[int] | None) -> None:
    assert merge_orders(orders) == merged


def rank_tasks(rank: int, late: float = 0.0, *, lost: bool = False, name: str = LAUNCH) -> RankTasks:
    """Three gathers of 10 ns each; the second starts ``late``, and its event may be lost."""
    start = np.array([0.0, 20.0 + late, np.nan, 60.0])
    work = np.column_stack((start, [10.0, 40.0, np.nan, 70.0]))
    stream, row = np.array([COMM, COMM, NONE, COMM]), np.array([0, 1, NONE, 2]) + 10 * rank
    row[2] = NONE
    if lost:
        work[1], stream[1], row[1] = np.nan, NONE, NONE
    return RankTasks(
        rank=rank,
        thread=np.ones(4, dtype=np.int64),
        name=Texts.of((LAUNCH, name, RECORD, LAUNCH)),
        blocks=np.zeros(4, dtype=np.bool_),
        call=np.array([(-2.0, -1.0), (15.0, 16.0), (17.0, 18.0), (50.0, 51.0)]),
        work=work,
        stream=stream,
        kernel=Texts.of(("gather",) * 4),
        row=row,
        step=np.zeros(4, dtype=np.int64),
    )


def rows_of(*ranks: RankTasks) -> Columns:
    """A table with ten rows per rank; those that no task has are of no collective."""
    count = 10 * len(ranks)
    shown = np.concatenate([rank.row[rank.row != NONE] for rank in ranks])
    instance = np.full(count, -1)
    instance[shown] = shown % 10
    instances = Groups(instance)
    return Columns(
        {
            "rank": np.arange(count) // 10,
            "instance": instance,
            "kind": Texts.of(["all_gather"] * count),
            "group": Texts.of(["0,1,2"] * count),
            "bytes": np.full(count, 8),
            "matched": (instances.sizes == len(ranks))[instances.codes],
        }
    )


def test_a_lost_collective_runs_at_its_call_with_the_others() -> None:
    ranks = [rank_tasks(0), rank_tasks(1, late=5.0), rank_tasks(2, lost=True)]
    filled = fill_lost_members(ranks, rows_of(*ranks))
    assert filled[:2] == ranks[:2]
    assert filled[2].work[1].tolist() == [30.0, 40.0], "as long as usual, and until the others end"
    assert (filled[2].stream[1], filled[2].row[1] % 10) == (COMM, 1)


def test_a_collective_whose_call_is_lost_too_is_not_invented() -> None:
    ranks = [rank_tasks(0), rank_tasks(1), rank_tasks(2, lost=True, name=RECORD)]
    assert fill_lost_members(ranks, rows_of(*ranks)) == ranks


def lose_kernels(folder: Path, every: int) -> None:
    """Remove one of ``every`` collectives, in turn on each rank."""
    for place, path in enumerate(sorted(folder.glob("rank*"))):
        read, write = (gzip.decompress, gzip.compress) if path.suffix == ".gz" else (bytes, bytes)
        trace = json.loads(read(path.read_bytes()))
        seen = 0
        kept = []
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                seen += 1
                if seen % every == (place + 1) * every // 5:
                    continue
            kept.append(event)
        path.write_bytes(write(json.dumps(trace | {"traceEvents": kept}).encode()))


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunAnalysis, RunAnalysis]:
    """A job with a late rank, with all events and without some."""
    found = []
    for every in (0, 40):
        folder = tmp_path_factory.mktemp("job")
        write_job(plant(base(3), "straggler_rank"), folder / "traces")
        if every:
            lose_kernels(folder / "traces", every)
        import_paths([folder / "traces"], folder / "run.zprof")
        found.append(analyse_time_only(load(folder / "run.zprof")))
    return found[0], found[1]


def test_the_replay_of_a_recording_with_lost_events_is_that_of_the_whole_one(
    analyses: tuple[RunAnalysis, RunAnalysis],
) -> None:
    whole, damaged = map(build_graph, analyses)
    assert isinstance(whole, Graph)
    assert isinstance(damaged, Graph)
    assert len(analyses[1].collectives) < len(analyses[0].collectives)
    assert damaged.members.tolist() == whole.members.tolist()
    assert play_graph(damaged)[:, -1] == pytest.approx(play_graph(whole)[:, -1], rel=0.01)


def test_lost_events_leave_the_cause_and_its_price(analyses: tuple[RunAnalysis, RunAnalysis]) -> None:
    whole, damaged = (diagnose(analysis).findings[0] for analysis in analyses)
    assert (damaged.cause, damaged.confidence) == (whole.cause, whole.confidence)
    assert damaged.saving_ns == pytest.approx(whole.saving_ns, rel=0.1)
