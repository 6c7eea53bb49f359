"""Recorded runs of the screens' tests, in tests/data/tui: ``--plant no_prefetch`` and ``--stage 0``."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from zprof.run.reader import load as open_run
from zprof.tui.session import LoadedRun, RunRequest, load

#: Python's own threshold of 700 objects makes a sixth of the time of an app.
_GARBAGE_THRESHOLD = 50_000
DATA = Path(__file__).parents[2] / "data" / "tui"


@pytest.fixture(autouse=True)
def _collect_garbage_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE_THRESHOLD, *before[1:])
    yield
    gc.set_threshold(*before)


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
