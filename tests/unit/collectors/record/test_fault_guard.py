"""A fault of zprof is a gap; a disk that fills is named as such."""

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from zprof.collectors.record.base import FaultGuard
from zprof.model.gaps import GapKind


@pytest.fixture
def _small_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("_small_files")
def test_a_file_that_does_not_fit_is_a_full_disk(tmp_path: Path) -> None:
    guard = FaultGuard()
    assert guard.run("memory tables", lambda: (tmp_path / "x").write_bytes(bytes(1 << 20))) is None
    guard.run("other", lambda: Path("/nowhere/at/all").read_bytes())
    assert [gap.kind for gap in guard.gaps] == [GapKind.DISK_FULL, GapKind.RECORDING]
    assert "memory tables" in guard.gaps[0].reason
