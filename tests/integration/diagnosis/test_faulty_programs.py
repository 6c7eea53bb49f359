"""A program that knows nothing of zprof, with a known fault, on real ranks: the fault is the first finding.

The faults are long against what a busy machine does to two ranks, or proven by counting.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import run_zprof

pytestmark = [pytest.mark.ranks, pytest.mark.timed, pytest.mark.slow]
PROGRAM = Path(__file__).parent / "programs/faulty_fsdp2.py"
#: Findings that a busy machine truly has beside a fault: a late rank (ZP3), slow hosts and copies (ZP5).
BUSY = ("ZP3", "ZP5")


def zprof(*arguments: str) -> str:
    return run_zprof(*arguments, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")


def first_finding(fault: str, folder: Path, beside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Record the program; return its first finding above low confidence that is none of ``beside``."""
    run = folder / "run.zprof"
    ranks = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    windows = ("--memory-steps", "0", "--time-steps", "8")
    zprof("record", "-o", str(run), *windows, "--", *ranks, str(PROGRAM), fault, "11")
    findings = json.loads(zprof("report", str(run), "-f", "json"))["findings"]
    sure = [each for each in findings if each["confidence"] != "low" and not each["id"].startswith(beside)]
    assert sure, findings
    return dict(sure[0])


@pytest.mark.parametrize(
    ("fault", "slept_ns", "beside"),
    [
        ("straggler_rank", 250e6, ()),
        ("rotating_straggler", 250e6, ()),
        ("data_loader", 150e6, ("ZP3",)),
    ],
)
def test_a_sleep_is_named_and_priced(
    fault: str, slept_ns: float, beside: tuple[str, ...], tmp_path: Path
) -> None:
    finding = first_finding(fault, tmp_path, beside)
    assert finding["cause"] == fault
    low, high = finding["saving_ns"]
    assert low <= slept_ns <= 1.1 * high
    if fault == "straggler_rank":
        assert {fact["rank"] for fact in finding["evidence"]} - {None} == {1}


@pytest.mark.parametrize(
    "fault",
    [
        "checkpoint_regathers",
        "accumulation_syncs",
        "accumulation_regathers",
        "needless_reshard_after_forward",
        "units_too_small",
        "single_unit",
    ],
)
def test_needless_messages_are_named(fault: str, tmp_path: Path) -> None:
    assert first_finding(fault, tmp_path, BUSY)["cause"] == fault
