"""The other support cases of the demo: the planted cause is found, and the fix wins something."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import run_zprof

#: Case: its runs, and the cause that is planted.
TIMED_CASES = {
    "late-rank": ("late-rank", "straggler_rank"),
    "reduction-per-micro-batch": ("syncs", "accumulation_syncs"),
}


def play(case: str, folder: Path, run: str) -> tuple[Any, Any]:
    """Play a case; return the reports of its run and of the fixed one."""
    text = run_zprof("demo", case, "-o", str(folder))
    assert text.splitlines()[-1].strip() == f"zprof tui {folder / run}.zprof"
    runs = (folder / f"{run}.zprof", folder / f"{run}-fixed.zprof")
    before, after = (json.loads(run_zprof("report", str(path), "-f", "json")) for path in runs)
    return before, after


def list_causes(report: Any) -> list[str]:
    return [found["cause"] for found in report["findings"] if found["confidence"] != "low"]


@pytest.mark.ranks
@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize("case", TIMED_CASES)
def test_the_planted_cause_is_found_and_the_fix_saves_time(case: str, tmp_path: Path) -> None:
    run, cause = TIMED_CASES[case]
    before, after = play(case, tmp_path, run)
    assert list_causes(before)[0] == cause
    assert cause not in list_causes(after)
    walls = [sum(rank["wall_ns"] for rank in report["time"]["per_rank"]) for report in (before, after)]
    assert walls[1] < walls[0]


@pytest.mark.ranks
def test_the_logits_are_found_and_smaller_micro_batches_free_memory(tmp_path: Path) -> None:
    before, after = play("logits-fill-memory", tmp_path, "logits")
    assert list_causes(before) == ["logits_dominate"]
    peaks = [max(rank["peak_bytes"] for rank in report["memory"]["per_rank"]) for report in (before, after)]
    assert peaks[1] < 0.5 * peaks[0]


def test_the_cases_are_listed_and_a_wrong_name_is_one_line(tmp_path: Path) -> None:
    names = [line.split()[0] for line in run_zprof("demo", "--list").splitlines()]
    assert names == ["slower-after-sharding", *TIMED_CASES, "logits-fill-memory"]
    wrong = subprocess.run(
        [sys.executable, "-m", "zprof", "demo", "late-ranks"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "late-rank" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1
