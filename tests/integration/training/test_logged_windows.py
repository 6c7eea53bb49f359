"""A training log of two gloo ranks: the late rank is waited for, and TensorBoard is missing in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked_ranks import free_port

ROOT = Path(__file__).parents[3]
LATE_MS = 200
PROGRAM = f"""
import logging, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from zprof.integrations.training_log import TrainingLog

logging.basicConfig()
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(3))))
optimizer = torch.optim.AdamW(model.parameters())
sys.modules["torch.utils.tensorboard"] = None
with TrainingLog(sys.argv[1], model=model, optimizer=optimizer, every=6, tensorboard=sys.argv[1]) as log:
    for step in range(16):
        if step > 10:
            time.sleep({LATE_MS / 1000} * dist.get_rank())
        model(torch.ones(8, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step()
dist.destroy_process_group()
"""


@pytest.mark.ranks
@pytest.mark.timed
def test_the_log_has_the_wait_for_a_rank_that_gets_late(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *(f"--master-port={free_port()}", "program.py", "log"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, (tmp_path / "log/zprof.jsonl").read_text().splitlines())
    assert [first["step"], second["step"]] == [8, 14]
    for entry in (first, second):
        assert entry["missing_ranks"] == []
        # 3 layers of 128 x 128 weights and 128 biases, fp32, on each rank; Adam's moments are twice that
        assert entry["figures"]["peak_bytes/parameters"] == 4 * 3 * (128 * 128 + 128)
        assert entry["figures"]["peak_bytes/optimizer_state"] >= 8 * 3 * (128 * 128 + 128)
    # The mean of two ranks, one of which waits for the other; half of that is sure on a busy machine.
    assert second["figures"]["exposed_wait_ns"] > LATE_MS * 1e6 / 2 / 2
    assert done.stderr.count("pip install tensorboard") == 1
    assert not (tmp_path / "log/windows").exists()
