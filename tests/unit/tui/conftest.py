"""Screens collect garbage seldom."""

import gc
from collections.abc import Iterator

import pytest

#: Python's own threshold of 700 objects makes a sixth of the time of an app.
_GARBAGE_THRESHOLD = 50_000


@pytest.fixture(autouse=True)
def _collect_garbage_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE_THRESHOLD, *before[1:])
    yield
    gc.set_threshold(*before)
