"""Runs that the screens are tested on: a sharded job that does not prefetch, and one without sharding.

Both are recordings of ``zprof train`` (``--plant no_prefetch``; ``--stage 0``), kept in ``tests/data/tui``.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from zprof.run.reader import load as open_run
from zprof.tui.session import LoadedRun, RunRequest, load

#: Objects that come to be before Python looks for garbage; its own 700 make a sixth of the time of an app.
_BEFORE_GARBAGE = 50_000
DATA = Path(__file__).parents[2] / "data" / "tui"


@pytest.fixture(autouse=True)
def _garbage_is_looked_for_seldom() -> Iterator[None]:
    """Screens make many objects that live for long, and the measured runs are looked through each time."""
    before = gc.get_threshold()
    gc.set_threshold(_BEFORE_GARBAGE, *before[1:])
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
    """The slow run beside its baseline, measured once."""
    return load(RunRequest(path=slow_run, baseline=baseline_run, opener=open_run), lambda doing: None)


@pytest.fixture(scope="session")
def alone(slow_run: Path) -> LoadedRun:
    """The slow run by itself."""
    return load(RunRequest(path=slow_run, opener=open_run), lambda doing: None)
