"""Programs that know nothing of zprof, with a known fault, on real ranks: the fault is the first finding.

The faults are long against what a busy machine does to two ranks, or proven by counting.  Beside the latter
a busy machine may truly have a late rank (ZP3), which may cost more.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ranks
PROGRAMS = Path(__file__).parent / "programs"
STEPS = 12


def zprof(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "zprof", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


def diagnosed(program: str, fault: str, folder: Path) -> Mapping[str, Any]:
    run = folder / "run.zprof"
    ranks = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    sick = (str(PROGRAMS / f"{program}.py"), fault, str(STEPS))
    zprof("record", "-o", str(run), "--memory-steps", "0", "--time-steps", "8", "--", *ranks, *sick)
    return dict(json.loads(zprof("report", str(run), "-f", "json")))


def first(report: Mapping[str, Any], *, beside: str = "none") -> Mapping[str, Any]:
    """The first finding that is no note, and whose id does not begin with ``beside``."""
    sure = [finding for finding in report["findings"] if finding["confidence"] != "low"]
    sure = [finding for finding in sure if not finding["id"].startswith(beside)]
    assert sure, report["findings"]
    return dict(sure[0])


def test_a_late_rank_of_a_replicated_network(tmp_path: Path) -> None:
    found = first(diagnosed("sick_ddp", "straggler_rank", tmp_path))
    assert found["cause"] == "straggler_rank"
    assert found["sentence"].startswith("rank 1 ")
    low, high = found["saving_ns"]
    assert low <= 60e6 <= 1.1 * high  # it sleeps 60 ms in each step


def test_reductions_of_each_micro_batch_of_a_replicated_network(tmp_path: Path) -> None:
    found = first(diagnosed("sick_ddp", "accumulation_syncs", tmp_path), beside="ZP3")
    assert found["cause"] == "accumulation_syncs"
    assert "in each of 4 micro-batches" in found["sentence"]


def test_a_sharded_transformer_with_a_slow_loader(tmp_path: Path) -> None:
    found = first(diagnosed("sick_fsdp2", "data_loader", tmp_path), beside="ZP3")
    assert found["cause"] == "data_loader"
    assert "data loader" in found["sentence"]
