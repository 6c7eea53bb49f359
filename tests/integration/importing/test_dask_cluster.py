"""Importing over a cluster as a user starts it: ``dask scheduler`` and two ``dask worker``."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_ranks import free_port
from tests.support.trace_folders import write_ranks
from zprof.collectors.read.imports import traces
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.collectors.read.imports.options import ImportOptions

pytestmark = pytest.mark.ranks
_RANKS = 4
#: What a rank may send home: its facts, however long its trace is.
_MAX_RESULT_BYTES = 4_096


def _start(stack: ExitStack, folder: Path, *arguments: str) -> None:
    """Start a program of Dask that is killed when the stack closes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait, 30)
    stack.callback(process.kill)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    here = ("--host", "127.0.0.1", "--no-dashboard")
    with ExitStack() as stack:
        _start(stack, folder, "scheduler", "--port", str(port), *here)
        for number in range(2):
            _start(
                stack, folder, "worker", f"tcp://127.0.0.1:{port}", *here, "--nthreads", "1", "--no-nanny",
                "--local-directory", str(folder / str(number)),
            )  # fmt: skip
        with distributed.Client(f"tcp://127.0.0.1:{port}", timeout=60, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield f"dask://127.0.0.1:{port}"


def _read_tables(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*.parquet")}


def test_the_workers_write_the_tables_and_send_home_only_facts(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path / "t", _RANKS, steps=3, kernels=4_000)
    sizes: list[int] = []

    def weigh(*arguments: Any) -> Iterator[tuple[Any, Any]]:
        for job, outcome in map_on_executor(*arguments):
            sizes.append(len(pickle.dumps(outcome)))
            yield job, outcome

    map_on_executor = traces.map_on_executor
    monkeypatch.setattr(traces, "map_on_executor", weigh)
    serial = import_paths([tmp_path / "t"], tmp_path / "serial.zprof", options=ImportOptions(workers=1))
    spread = import_paths(
        [tmp_path / "t"], tmp_path / "spread.zprof", options=ImportOptions(executor=address)
    )
    tables = _read_tables(spread.run)
    assert tables == _read_tables(serial.run)
    assert len(sizes) == _RANKS
    assert max(sizes) <= _MAX_RESULT_BYTES
    assert sum(map(len, tables.values())) > 10 * sum(sizes)
