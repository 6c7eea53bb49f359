"""Programs are found among all objects of the process: those that other tests left are put out of sight."""

import gc

import pytest


@pytest.fixture(autouse=True)
def _no_object_of_another_test() -> None:
    gc.collect()
    gc.freeze()
