"""Importing over a Dask cluster, beside one that is killed, and of many ranks."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trace_folders import write_ranks, write_trace
from zprof.cli import main
from zprof.integrations.imports import traces
from zprof.integrations.imports.import_paths import import_paths
from zprof.integrations.imports.options import ImportOptions
from zprof.integrations.imports.trace_worker import RankFacts, Refusal, TraceJob, import_trace
from zprof.model.errors import BadInput
from zprof.run.reader import load

KILLER = "rank2.json"


def import_or_die(job: TraceJob) -> RankFacts | Refusal:
    """A file of this name takes the process that reads it with it, as the system does when memory ends."""
    if job.path.endswith(KILLER):
        Path(job.folder).mkdir(exist_ok=True)
        (Path(job.folder) / ".events.parquet.tmp").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return import_trace(job)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as running:
        yield running


def dask_of(cluster: Any) -> ImportOptions:
    return ImportOptions(executor=cluster.scheduler_address.replace("tcp://", "dask://"))


def tables(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*.parquet")}


def test_a_cluster_writes_the_same_tables(cluster: Any, tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 4)
    (tmp_path / "t/rank1.json").write_text('{"traceEvents": 7}')
    one = import_paths([tmp_path / "t"], tmp_path / "one.zprof", options=ImportOptions(workers=1))
    two = import_paths([tmp_path / "t"], tmp_path / "two.zprof", options=ImportOptions(workers=2))
    there = import_paths([tmp_path / "t"], tmp_path / "there.zprof", options=dask_of(cluster))
    assert len(tables(one.run)) == 9
    assert tables(one.run) == tables(two.run) == tables(there.run)
    assert one.files == there.files
    assert one.notes == there.notes


def test_the_command_takes_a_cluster(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ranks(tmp_path / "t", 2)
    where = ["--executor", dask_of(cluster).executor]
    assert main(["import", str(tmp_path / "t"), "-o", str(tmp_path / "r.zprof"), *where]) == 0
    assert "(2 ranks)" in capsys.readouterr().err


def test_a_worker_of_a_cluster_that_dies_is_a_gap(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path / "t", 3)
    monkeypatch.setattr(traces, "import_trace", import_or_die)
    made = import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=dask_of(cluster))
    assert load(made.run).ranks == (0, 1)
    assert "was killed" in made.notes[-1]


def test_without_a_scheduler_it_ends_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("zprof.integrations.imports.executors._CONNECT_S", 0.5)
    write_ranks(tmp_path / "t", 2)
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        where = ["--executor", f"dask://127.0.0.1:{taken.getsockname()[1]}"]
        assert main(["import", str(tmp_path / "t"), "-o", str(tmp_path / "r.zprof"), *where]) == 2
    err = capsys.readouterr().err
    assert "no scheduler answers" in err
    assert os.listdir(tmp_path) == ["t"]


def test_a_cluster_without_workers_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("zprof.integrations.imports.executors._WORKERS_S", 0.2)
    write_ranks(tmp_path / "t", 2)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", host="127.0.0.1") as empty,
        pytest.raises(BadInput, match="the cluster has no workers"),
    ):
        import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=dask_of(empty))


def test_without_distributed_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    write_ranks(tmp_path / "t", 2)
    with pytest.raises(BadInput, match="distributed is not installed") as error:
        import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(executor="dask://a:1"))
    assert error.value.hint == "pip install 'zprof[dask]'"


def test_a_reader_that_is_killed_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path / "t", 4)
    monkeypatch.setattr(traces, "import_trace", import_or_die)
    made = import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(workers=2))
    run = load(made.run)
    assert run.ranks == (0, 1, 3)
    (gap,) = [gap for gap in run.gaps() if gap.what == "file not imported"]
    assert gap.reason.startswith("rank2.json: the process that reads it was killed")
    assert not made.lasting
    assert sorted(os.listdir(made.run)) == ["manifest.json", "rank00000", "rank00001", "rank00003"]


def test_a_killed_reader_of_the_only_good_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path / "t", 3)
    for rank in (0, 1):
        write_trace(tmp_path / f"t/rank{rank}.json", {"traceEvents": []})
    monkeypatch.setattr(traces, "import_trace", import_or_die)
    with pytest.raises(BadInput, match=r"none of 3 files can be used; .*rank0.json: no event"):
        import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(workers=2))
    assert os.listdir(tmp_path) == ["t"]


def test_a_full_disk_is_an_error_not_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path / "t", 2)
    monkeypatch.setattr(traces, "import_trace", disk_full)
    with pytest.raises(BadInput, match=r"r\.zprof: cannot be written \(No space left on device\)"):
        import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(workers=1))


def disk_full(job: TraceJob) -> RankFacts | Refusal:
    raise OSError(28, "No space left on device")


def test_many_ranks(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 24, kernels=20)
    made = import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(workers=2))
    run = load(made.run)
    assert run.ranks == tuple(range(24))
    assert run.manifest.world_size == 24
    assert not [gap for gap in run.gaps() if gap.what in ("ranks missing", "file not imported")]
    assert all(run.table(rank, "events").num_rows == 2 * (20 * 2 + 3) for rank in (0, 11, 23))
