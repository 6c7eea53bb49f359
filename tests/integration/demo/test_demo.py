"""The main job, as a user runs it: three recorded trainings, the reports made from them."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from zprof.model.time import LEDGER_TERMS

pytestmark = [pytest.mark.ranks, pytest.mark.timed]


def zprof(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "zprof", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo") / "zprof-demo"
    return folder, zprof("demo", "-o", str(folder))


@pytest.fixture(scope="module")
def reports(played: tuple[Path, str]) -> Mapping[str, Any]:
    folder, _ = played
    names = ("ddp", "zero3", "zero3-prefetch")
    return {name: json.loads(zprof("report", str(folder / f"{name}.zprof"), "-f", "json")) for name in names}


def exposed_ratio(report: Mapping[str, Any]) -> float:
    ranks = report["time"]["per_rank"]
    collective = sum(rank["collective_ns"] for rank in ranks)
    return 1 - sum(rank["overlapped_ns"] for rank in ranks) / collective


def step_ns(report: Mapping[str, Any]) -> float:
    return sum(rank["wall_median_ns"] for rank in report["time"]["per_rank"])


def test_it_says_what_is_modelled_and_ends_with_the_next_commands(played: tuple[Path, str]) -> None:
    folder, text = played
    assert "MODELLED" in text
    assert "SLOWER" in text
    assert f"zprof report {folder}/zero3.zprof --baseline {folder}/ddp.zprof" in text


def test_the_first_finding_is_the_missing_prefetch(played: tuple[Path, str]) -> None:
    folder, _ = played
    report = json.loads(
        zprof("report", f"{folder}/zero3.zprof", "--baseline", f"{folder}/ddp.zprof", "-f", "json")
    )
    assert report["verdict"]["status"] == "slower"
    assert report["findings"][0]["cause"] == "no_prefetch"
    assert report["findings"][0]["confidence"] == "high"
    assert sum(report["comparison"]["ledger_delta"].values()) == (
        report["comparison"]["step_time"]["b_ns"] - report["comparison"]["step_time"]["a_ns"]
    )


def test_without_prefetch_nearly_all_is_exposed_and_the_fix_hides_it(reports: Mapping[str, Any]) -> None:
    assert exposed_ratio(reports["zero3"]) > 0.80
    assert exposed_ratio(reports["zero3-prefetch"]) < 0.35
    assert step_ns(reports["zero3-prefetch"]) < step_ns(reports["zero3"])
    assert "no_prefetch" not in [finding["cause"] for finding in reports["zero3-prefetch"]["findings"]]


@pytest.mark.parametrize("name", ["ddp", "zero3", "zero3-prefetch"])
def test_the_ledger_sums_to_the_wall_on_every_rank(reports: Mapping[str, Any], name: str) -> None:
    ranks = reports[name]["time"]["per_rank"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    for rank in ranks:
        assert sum(rank[term] for term in LEDGER_TERMS) == pytest.approx(rank["wall_ns"], rel=1e-3)
        assert abs(rank["unexplained_ns"]) <= 0.02 * rank["wall_ns"]


@pytest.mark.parametrize("name", ["ddp", "zero3", "zero3-prefetch"])
def test_states_obey_the_law_and_next_to_nothing_is_untagged(reports: Mapping[str, Any], name: str) -> None:
    for rank in reports[name]["memory"]["per_rank"]:
        law, states = rank["formula"], rank["state_bytes"]
        expected = law["parameters"] + law["gradients"] + law["optimizer_state"]
        assert sum(states.values()) == expected + law["padding_bytes"] + law["scalar_bytes"]
        assert rank["untagged_bytes"] <= 0.001 * rank["peak_bytes"]
        assert sum(rank["tenants"].values()) + rank["untagged_bytes"] == rank["peak_bytes"]


@pytest.mark.parametrize("name", ["ddp", "zero3", "zero3-prefetch"])
def test_the_bytes_moved_are_those_of_the_stage(reports: Mapping[str, Any], name: str) -> None:
    assert reports[name]["volume"]["ratio"] == 1.0


def test_sharding_did_give_headroom(reports: Mapping[str, Any]) -> None:
    def peak(name: str) -> int:
        return max(rank["peak_bytes"] for rank in reports[name]["memory"]["per_rank"])

    assert peak("zero3") < peak("ddp")
