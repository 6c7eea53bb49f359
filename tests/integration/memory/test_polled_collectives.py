"""A program that polls ``is_completed()`` goes on: the window must not tie gloo's thread to Python's lock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("polling_worker.py")
ROOT = Path(__file__).parents[3]
TIME_LIMIT_S = 120  # it takes 2 seconds; the deadlock that it looks for lasts


@pytest.mark.ranks
def test_polling_within_the_window_does_not_hang() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(WORKER)], env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
