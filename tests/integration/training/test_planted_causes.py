"""Causes planted in real ranks are found: a straggler with its skew, a slow link by its bandwidth."""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from zprof.cli import main

pytestmark = [pytest.mark.ranks, pytest.mark.timed]
PLANTED_MS = 40.0
OPTIONS = (
    "--layers 4 --hidden 128 --heads 4 --vocabulary 64 --context 16 --batch 4 --stage 3 "
    "--keep-after-forward last --compute-forward-ms 12 --compute-backward-ms 24 --link-latency-us 50"
)
#: To drop the last block and gather it at once costs a twentieth of the step, and is a cause.
HEALTHY = ("--link-gbps", "0.4", "--keep-after-forward", "last")
RECORDINGS = 3


def recorded(folder: Path, name: str, *options: str) -> Path:
    run = folder / f"{name}.zprof"
    windows = ("--memory-steps", "0", "--time-steps", "10")
    assert main(["train", "-o", str(run), *windows, *OPTIONS.split(), *options]) == 0
    return run


def report(run: Path, *options: str) -> Mapping[str, Any]:
    path = run.with_suffix(".json")
    assert main(["report", str(run), *options, "-f", "json", "-o", str(path)]) == 0
    return dict(json.loads(path.read_text()))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("healthy"), "healthy", *HEALTHY)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_straggler_is_named_with_its_delay(tmp_path: Path, rank: int) -> None:
    """Other work on these cores slows kernels by more than the rank is late, but not in each recording.

    How sure the answer is depends on how busy they are; it is more than a guess.
    """
    planted = ("--plant", "straggler_rank", "--straggler-rank", str(rank), "--straggler-ms", str(PLANTED_MS))
    seen = []
    for count in range(RECORDINGS):
        first = report(recorded(tmp_path, f"straggler{count}", *planted))["findings"][0]
        delays = [row for row in first["evidence"] if row["key"] == "own_time_excess"]
        found = [(row["rank"], row["value"] / 1e6) for row in delays]
        seen.append((first["cause"], first["confidence"], found))
        # 30 %: less the noise of two ranks
        is_named = found == [(rank, pytest.approx(PLANTED_MS, rel=0.3))]
        if first["cause"] == "straggler_rank" and first["confidence"] != "low" and is_named:
            return
    pytest.fail(f"no recording names the planted rank with its delay: {seen}")


@pytest.mark.slow
def test_a_healthy_run_accuses_nobody(healthy: Path, tmp_path: Path) -> None:
    """On a machine that does something else, too, a rank is truly late at times, but not each time."""
    again = (recorded(tmp_path, f"healthy{count}", *HEALTHY) for count in range(1, RECORDINGS))
    found = []
    for run in chain([healthy], again):
        causes = {f["cause"]: f["confidence"] for f in report(run)["findings"]}
        if "straggler_rank" not in causes and set(causes.values()) <= {"low"}:
            return
        found.append(causes)
    pytest.fail(f"each recording accuses somebody: {found}")


@pytest.mark.slow
def test_a_slow_link_is_found_against_the_healthy_run(tmp_path: Path, healthy: Path) -> None:
    slow = recorded(tmp_path, "slow", "--plant", "low_bus_bandwidth")
    found = report(slow, "--baseline", str(healthy))
    assert found["verdict"]["status"] == "slower"
    assert found["findings"][0]["cause"] == "low_bus_bandwidth"
    gathers = [row for row in found["time"]["collectives"] if row["kind"] == "all_gather"]
    for row in gathers:
        assert row["busbw_bytes_per_s"] == pytest.approx(0.4e9 / 8 / 5, rel=0.15)


@pytest.mark.slow
def test_the_cure_of_a_missing_prefetch_wins_what_the_finding_says(tmp_path: Path) -> None:
    sick = report(recorded(tmp_path, "sick", "--plant", "no_prefetch"))
    well = report(recorded(tmp_path, "well", "--plant", "no_prefetch", "--fixed"))
    first = sick["findings"][0]
    assert (first["cause"], first["confidence"]) == ("no_prefetch", "high")
    assert "no_prefetch" not in {f["cause"] for f in well["findings"] if f["confidence"] != "low"}
    low, high = first["saving_ns"]
    assert low <= step_ns(sick) - step_ns(well) <= high


def step_ns(found: Mapping[str, Any]) -> float:
    """The median over the steps of all ranks."""
    return median(step["wall_ns"] for step in found["time"]["steps"])
