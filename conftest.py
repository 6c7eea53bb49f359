"""For all tests: one thread, no stop-watch, one worker for each file, and pytest within pytest."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# Tensors of tests are small, and tests run beside each other: a second thread only spins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test judges absolute times: a busy machine makes any example slow once.
settings.register_profile("zprof", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("zprof")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look through it for garbage takes a third of the time, and then some."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one worker of ``--dist loadgroup``: what its fixtures made is made once."""
    root = Path(__file__).parent
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(root).as_posix()))
