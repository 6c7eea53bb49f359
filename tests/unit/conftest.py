"""Recorded runs for tests of pages and screens: ``--plant no_prefetch`` and ``--stage 0``."""

from pathlib import Path

import pytest

from zprof.run.reader import load as open_run
from zprof.tui.session import LoadedRun, RunRequest, load

DATA = Path(__file__).parents[1] / "data" / "tui"


@pytest.fixture(scope="session")
def slow_run() -> Path:
    """Stage 3 without prefetch."""
    return DATA / "zero3"


@pytest.fixture(scope="session")
def baseline_run() -> Path:
    """Stage 0."""
    return DATA / "ddp"


@pytest.fixture(scope="session")
def loaded(slow_run: Path, baseline_run: Path) -> LoadedRun:
    """The slow run beside its baseline."""
    return load(RunRequest(path=slow_run, baseline=baseline_run, opener=open_run), lambda doing: None)


@pytest.fixture(scope="session")
def alone(slow_run: Path) -> LoadedRun:
    """The slow run by itself."""
    return load(RunRequest(path=slow_run, opener=open_run), lambda doing: None)
