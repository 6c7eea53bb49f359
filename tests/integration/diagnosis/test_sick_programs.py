"""Programs that know nothing of zprof, with a known fault, on real ranks: the fault is the first finding.

The faults are long against what a busy machine does to two ranks, or proven by counting.  Beside the latter
a busy machine may truly have a late rank (ZP3), or its hosts and copies take long (ZP5): these may cost more.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.timed]
PROGRAMS = Path(__file__).parent / "programs"
STEPS = 11
#: What the programs sleep in each step, late or loading, and how far beyond it a busy machine makes that.
LATE_NS, LOADING_NS = 250e6, 150e6
BUSY = ("ZP3", "ZP5")


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


def holds(found: Mapping[str, Any], true_ns: float) -> bool:
    """Whether the saving holds what is true, within the tenth by which sleeping differs."""
    low, high = found["saving_ns"]
    return bool(low <= true_ns <= 1.1 * high)


def sure(report: Mapping[str, Any], *, beside: tuple[str, ...] = ()) -> list[Mapping[str, Any]]:
    """The findings that are no notes, and whose id does not begin with any of ``beside``."""
    findings = [finding for finding in report["findings"] if finding["confidence"] != "low"]
    return [finding for finding in findings if not finding["id"].startswith(beside)]


def first(report: Mapping[str, Any], *, beside: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """The first of these."""
    found = sure(report, beside=beside)
    assert found, report["findings"]
    return found[0]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("program", [pytest.param("sick_ddp", marks=SLOW), "sick_fsdp2"])
def test_a_late_rank(program: str, tmp_path: Path) -> None:
    found = first(diagnosed(program, "straggler_rank", tmp_path))
    assert found["cause"] == "straggler_rank"
    assert found["sentence"].startswith("rank 1 ")
    assert holds(found, LATE_NS)


@SLOW
def test_another_late_rank_in_each_step(tmp_path: Path) -> None:
    found = first(diagnosed("sick_ddp", "rotating_straggler", tmp_path))
    assert found["cause"] == "rotating_straggler"
    assert "2 of 2 in turn" in found["sentence"]
    assert holds(found, LATE_NS)


@SLOW
@pytest.mark.parametrize("program", ["sick_ddp", "sick_fsdp2"])
def test_a_slow_loader(program: str, tmp_path: Path) -> None:
    found = first(diagnosed(program, "data_loader", tmp_path), beside=("ZP3",))
    assert found["cause"] == "data_loader"
    assert "data loader" in found["sentence"]
    assert holds(found, LOADING_NS)


@SLOW
@pytest.mark.parametrize("program", ["sick_ddp", "sick_fsdp2"])
def test_reductions_of_each_micro_batch(program: str, tmp_path: Path) -> None:
    found = first(diagnosed(program, "accumulation_syncs", tmp_path), beside=BUSY)
    assert found["cause"] == "accumulation_syncs"
    assert "in each of 4 micro-batches" in found["sentence"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param("accumulation_regathers", "for 5 units and 4 micro-batches", marks=SLOW),
        pytest.param("needless_reshard_after_forward", "units are dropped after their forward", marks=SLOW),
        ("checkpoint_regathers", "4 units are gathered three times a step"),
        pytest.param("units_too_small", "each block is 6 units", marks=SLOW),
        pytest.param("single_unit", "the model is one unit", marks=SLOW),
    ],
)
def test_gathers_of_a_sharded_transformer(fault: str, says: str, tmp_path: Path) -> None:
    found = first(diagnosed("sick_fsdp2", fault, tmp_path), beside=BUSY)
    assert found["cause"] == fault
    assert says in found["sentence"]
