"""A program that polls ``is_completed()`` goes on: the window must not tie gloo's thread to Python's lock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIME_LIMIT_S = 120  # it takes 2 seconds; the deadlock that it looks for lasts
POLLING = """
import torch
import torch.distributed as dist
from zprof.collectors.record.memory.collector import MemoryCollector

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
collector = MemoryCollector(None, None)
collector.start()
for _ in range(1500):
    work = dist.all_reduce(torch.ones(64), async_op=True)
    while not work.is_completed():
        pass
collector.stop()
assert collector.gaps() == []
dist.destroy_process_group()
"""


@pytest.mark.ranks
def test_polling_within_the_window_does_not_hang() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", POLLING], env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
