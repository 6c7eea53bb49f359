"""Ranks that call different units get an error that names them, instead of a mixture of two experts."""

import re
from pathlib import Path
from typing import Any

import pytest
from engine_ranks import run_ranks

pytestmark = pytest.mark.ranks

WORKER = Path(__file__).with_name("order_worker.py")
EQUAL = [16, 16, 16]
DIFFERENT = [16, 24, 32]
LINK = {"bandwidth_bytes_per_s": 1e9}


def run(folder: Path, ranks: int, **case: Any) -> list[dict[str, Any]]:
    ended = run_ranks({"case": case}, ranks, folder, timeout_s=60, worker=WORKER)
    assert [rank.code for rank in ended] == [0] * ranks, [rank.error for rank in ended]
    return [rank.results["case"] for rank in ended]


@pytest.mark.parametrize(
    ("ranks", "hidden", "deviates_in", "link"),
    [
        (2, EQUAL, 0, None),
        (2, EQUAL, 4, None),
        (2, DIFFERENT, 4, None),
        (4, EQUAL, 0, None),
        (4, EQUAL, 4, None),
        (2, EQUAL, 4, LINK),
    ],
    ids=["2 first", "2 later", "2 later, other sizes", "4 first", "4 later", "2 later, modelled link"],
)
def test_all_ranks_raise_in_the_step_in_which_one_deviates(
    tmp_path: Path, ranks: int, hidden: list[int], deviates_in: int, link: dict[str, float] | None
):
    deviating = ranks - 1
    results = run(
        tmp_path, ranks, hidden=hidden, steps=6, deviating=deviating, deviates_in=deviates_in, link=link
    )
    assert [result.get("step") for result in results] == [deviates_in] * ranks
    assert len({result["error"] for result in results}) == 1
    error = results[0]["error"]
    calls = re.findall(r"ranks? ([\d, ]+): \w+ of unit ([\w.]+)", error)
    others = ", ".join(str(rank) for rank in range(ranks) if rank != deviating)
    # Later the first expert was fetched ahead on every rank, and the others fetch the next.
    expected = "experts.0" if deviates_in == 0 else "experts.1"
    assert sorted(calls) == sorted([(str(deviating), "experts.2"), (others, expected)])
    assert {result["again"] for result in results} == {error}  # the group is of no use any more


def test_ranks_that_change_their_order_together_go_on(tmp_path: Path):
    results = run(tmp_path, 2, hidden=EQUAL, steps=12, drop=True)
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["counted"] == results[1]["counted"]


@pytest.mark.parametrize("settings", [{}, {"micro_batches": 3, "clip": 1.0}], ids=["plain", "accumulated"])
def test_an_order_that_repeats_itself_costs_no_message(tmp_path: Path, settings: dict[str, Any]):
    counted = run(tmp_path, 2, hidden=EQUAL, steps=6, **settings)[0]["counted"]
    assert counted[0][0] > 0
    assert counted[2:] == [counted[2]] * 4
