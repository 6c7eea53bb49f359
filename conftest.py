"""For all tests: one thread, no stop-watch, one worker for each file, and pytest within pytest."""

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# Tensors of tests are small, and tests run beside each other: a second thread only spins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# jsonschema would build a grammar of IRIs at each import (seconds); no schema here checks formats.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# No test judges absolute times: a busy machine makes any example slow once.  Each default run has the same
# examples, so that a red run is due to the change; the nightly run (make test-all) draws new ones.
settings.register_profile(
    "zprof",
    deadline=None,
    derandomize=not os.environ.get("ZPROF_NEW_EXAMPLES"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("zprof")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Import into a folder of this session, and never into that of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
