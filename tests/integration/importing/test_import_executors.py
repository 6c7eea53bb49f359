"""Importing over a Dask cluster and in processes, some of which are killed."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trace_folders import write_ranks
from zprof.base.errors import BadInput
from zprof.cli import main
from zprof.collectors.read.imports import traces
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.collectors.read.imports.options import ImportOptions
from zprof.collectors.read.imports.trace_worker import RankFacts, Refusal, TraceJob, import_trace
from zprof.run.reader import load


def import_or_die(job: TraceJob) -> RankFacts | Refusal:
    """Kill the process that reads the file of rank 2, as the system does when memory ends."""
    if job.path.endswith("rank2.json"):
        Path(job.folder).mkdir(exist_ok=True)
        (Path(job.folder) / ".events.parquet.tmp").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return import_trace(job)


def disk_full(job: TraceJob) -> RankFacts | Refusal:
    raise OSError(28, "No space left on device")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as running:
        yield running.scheduler_address.replace("tcp://", "dask://")


def tables(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*.parquet")}


def test_a_cluster_writes_the_same_tables(cluster: str, tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 4)
    (tmp_path / "t/rank1.json").write_text('{"traceEvents": 7}')
    one = import_paths([tmp_path / "t"], tmp_path / "one.zprof", options=ImportOptions(workers=1))
    two = import_paths([tmp_path / "t"], tmp_path / "two.zprof", options=ImportOptions(workers=2))
    assert main(["import", str(tmp_path / "t"), "-o", str(tmp_path / "three"), "--executor", cluster]) == 0
    assert len(tables(one.run)) == 9
    assert tables(one.run) == tables(two.run) == tables(tmp_path / "three")
    assert load(one.run).gaps() == load(tmp_path / "three").gaps()


@pytest.mark.parametrize("where", ["processes", pytest.param("cluster", marks=pytest.mark.slow)])
def test_a_reader_that_is_killed_is_a_gap(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    write_ranks(tmp_path / "t", 4)
    monkeypatch.setattr(traces, "import_trace", import_or_die)
    options: dict[str, Any] = {"workers": 2}
    if where == "cluster":
        options = {"executor": request.getfixturevalue("cluster")}
    made = import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(**options))
    run = load(made.run)
    assert run.ranks == (0, 1, 3)
    assert [gap.what for gap in run.gaps() if "rank2.json" in gap.reason] == ["file not imported"]
    assert not made.is_cacheable
    assert sorted(os.listdir(made.run)) == ["manifest.json", "rank00000", "rank00001", "rank00003"]


def test_a_full_disk_is_an_error_not_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path / "t", 2)
    monkeypatch.setattr(traces, "import_trace", disk_full)
    with pytest.raises(BadInput, match=r"r\.zprof.*No space left on device"):
        import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(workers=1))
    assert os.listdir(tmp_path) == ["t"]


def test_without_a_scheduler_it_ends_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("zprof.collectors.read.imports.executors._CONNECT_S", 0.5)
    write_ranks(tmp_path / "t", 2)
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        where = ["--executor", f"dask://127.0.0.1:{taken.getsockname()[1]}"]
        assert main(["import", str(tmp_path / "t"), "-o", str(tmp_path / "r.zprof"), *where]) == 2
    assert "scheduler" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["t"]


def test_without_distributed_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    write_ranks(tmp_path / "t", 2)
    with pytest.raises(BadInput, match="distributed") as error:
        import_paths([tmp_path / "t"], tmp_path / "r.zprof", options=ImportOptions(executor="dask://a:1"))
    assert "zprof[dask]" in error.value.hint
