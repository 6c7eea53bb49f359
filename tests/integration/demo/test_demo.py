"""The main job, as a user runs it: three recorded trainings, the reports made from them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import run_zprof
from zprof.model.time import LEDGER_TERMS

pytestmark = [pytest.mark.ranks, pytest.mark.timed]
NAMES = ("ddp", "zero3", "zero3-prefetch")
#: docs/thresholds.md: a wider range has at most medium confidence. The noise of a busy machine widens ranges.
MAX_SURE_SPAN = 4


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo") / "zprof-demo"
    return folder, run_zprof("demo", "-o", str(folder))


@pytest.fixture(scope="module")
def reports(played: tuple[Path, str]) -> Mapping[str, Any]:
    folder, _ = played
    return {
        name: json.loads(run_zprof("report", str(folder / f"{name}.zprof"), "-f", "json")) for name in NAMES
    }


def exposed_ratio(report: Mapping[str, Any]) -> float:
    ranks = report["time"]["per_rank"]
    collective = sum(rank["collective_ns"] for rank in ranks)
    return 1 - sum(rank["overlapped_ns"] for rank in ranks) / collective


def step_ns(report: Mapping[str, Any]) -> float:
    return sum(rank["wall_median_ns"] for rank in report["time"]["per_rank"])


def test_it_ends_with_the_command_of_the_screen(played: tuple[Path, str]) -> None:
    folder, text = played
    assert "MODELLED" in text
    assert text.splitlines()[-1].strip() == f"zprof tui {folder}/zero3.zprof {folder}/ddp.zprof"
    assert not set(text.splitlines()[-1].split()[2:]) - {str(path) for path in folder.iterdir()}


def test_the_first_finding_is_the_missing_prefetch(played: tuple[Path, str]) -> None:
    runs = (f"{played[0]}/zero3.zprof", "--baseline", f"{played[0]}/ddp.zprof")
    report = json.loads(run_zprof("report", *runs, "-f", "json"))
    assert report["verdict"]["status"] == "slower"
    finding = report["findings"][0]
    low, high = finding["saving_ns"]
    assert low > 0
    confidence = "high" if high <= MAX_SURE_SPAN * low else "medium"
    assert (finding["cause"], finding["confidence"]) == ("no_prefetch", confidence)
    times = report["comparison"]["step_time"]
    assert sum(report["comparison"]["ledger_delta"].values()) == times["b_ns"] - times["a_ns"]


def test_without_prefetch_nearly_all_is_exposed_and_the_fix_hides_it(reports: Mapping[str, Any]) -> None:
    assert exposed_ratio(reports["zero3"]) > 0.80
    assert exposed_ratio(reports["zero3-prefetch"]) < 0.35
    assert step_ns(reports["zero3-prefetch"]) < step_ns(reports["zero3"])
    assert "no_prefetch" not in [finding["cause"] for finding in reports["zero3-prefetch"]["findings"]]


@pytest.mark.parametrize("name", NAMES)
def test_time_memory_and_bytes_of_each_run_add_up(reports: Mapping[str, Any], name: str) -> None:
    report = reports[name]
    assert [rank["rank"] for rank in report["time"]["per_rank"]] == [0, 1]
    for rank in report["time"]["per_rank"]:
        assert sum(rank[term] for term in LEDGER_TERMS) == pytest.approx(rank["wall_ns"], rel=1e-3)
        assert abs(rank["unexplained_ns"]) <= 0.02 * rank["wall_ns"]
    for rank in report["memory"]["per_rank"]:
        formula = rank["formula"]
        expected = formula["parameters"] + formula["gradients"] + formula["optimizer_state"]
        assert (
            sum(rank["state_bytes"].values()) == expected + formula["padding_bytes"] + formula["scalar_bytes"]
        )
        assert rank["untagged_bytes"] <= 0.001 * rank["peak_bytes"]
        assert sum(rank["tenants"].values()) + rank["untagged_bytes"] == rank["peak_bytes"]
    assert report["volume"]["ratio"] == 1.0


def test_sharding_lowers_the_peak(reports: Mapping[str, Any]) -> None:
    peaks = {name: max(rank["peak_bytes"] for rank in reports[name]["memory"]["per_rank"]) for name in NAMES}
    assert peaks["zero3"] < peaks["ddp"]
