"""Runs that the screens are tested on: a sharded job that does not prefetch, and one without sharding.

Both are recordings of ``zprof train`` (``--plant no_prefetch``; ``--stage 0``), kept in ``tests/data/tui``.
"""

from pathlib import Path

import pytest

from zprof.run.reader import load as open_run
from zprof.tui.session import Asked, Loaded, load

DATA = Path(__file__).parents[2] / "data" / "tui"


@pytest.fixture(scope="session")
def slow_run() -> Path:
    """Stage 3 without prefetch."""
    return DATA / "zero3"


@pytest.fixture(scope="session")
def baseline_run() -> Path:
    """Stage 0."""
    return DATA / "ddp"


@pytest.fixture(scope="session")
def loaded(slow_run: Path, baseline_run: Path) -> Loaded:
    """The slow run beside its baseline, measured once."""
    return load(Asked(path=slow_run, baseline=baseline_run, opener=open_run), lambda doing: None)


@pytest.fixture(scope="session")
def alone(slow_run: Path) -> Loaded:
    """The slow run by itself."""
    return load(Asked(path=slow_run, opener=open_run), lambda doing: None)
