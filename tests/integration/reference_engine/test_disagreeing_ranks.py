"""Ranks that call different units, or go away, end the others with an error: nobody hangs or mixes units."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from engine_ranks import run_alone

pytestmark = pytest.mark.ranks

EQUAL = [16, 16, 16]
DIFFERENT = [16, 24, 32]
LINK = {"bandwidth_bytes_per_s": 1e9}
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "vocabulary": 31, "context": 8}


@pytest.mark.parametrize(
    ("ranks", "hidden", "deviates_in", "link"),
    [
        (2, EQUAL, 4, LINK),
        (4, EQUAL, 0, None),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((2, EQUAL, 0, None), (2, DIFFERENT, 4, None), (4, EQUAL, 4, None))
        ),
    ],
)
def test_all_ranks_raise_in_the_step_in_which_one_deviates(
    tmp_path: Path, ranks: int, hidden: list[int], deviates_in: int, link: dict[str, float] | None
):
    deviating = ranks - 1
    case = {"hidden": hidden, "steps": 6, "deviating": deviating, "deviates_in": deviates_in, "link": link}
    ended = run_alone("order_worker", {"case": case}, ranks, tmp_path)
    assert [rank.code for rank in ended] == [0] * ranks, [rank.error for rank in ended]
    results = [rank.results["case"] for rank in ended]
    assert [result.get("step") for result in results] == [deviates_in] * ranks
    error = results[0]["error"]
    # The group is of no use any more.
    assert {result[key] for result in results for key in ("error", "again")} == {error}
    calls = re.findall(r"ranks? ([\d, ]+): \w+ of unit ([\w.]+)", error)
    others = ", ".join(str(rank) for rank in range(ranks) if rank != deviating)
    # Later the first expert was fetched ahead on every rank, and the others fetch the next.
    expected = "experts.0" if deviates_in == 0 else "experts.1"
    assert sorted(calls) == sorted([(str(deviating), "experts.2"), (others, expected)])


def test_ranks_that_change_their_order_together_go_on_and_repetition_costs_no_message(run_on):
    cases: dict[str, dict[str, Any]] = {
        "changing": {"hidden": EQUAL, "steps": 12, "drop": True},
        "plain": {"hidden": EQUAL, "steps": 6},
        "accumulated": {"hidden": EQUAL, "steps": 6, "micro_batches": 3, "clip": 1.0},
    }
    first, second = run_on(2, "order_worker", cases)
    assert first == second
    for name in ("plain", "accumulated"):
        counted = first[name]["counted"]
        assert counted[0][0] > 0
        assert counted[2:] == [counted[2]] * 4


@pytest.mark.parametrize(
    ("stage", "link", "fault"),
    [
        (0, None, "kill"),
        (2, LINK, "raise"),
        pytest.param(3, None, "raise", marks=pytest.mark.slow),
        pytest.param(3, LINK, "kill", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_goes_away_ends_the_others_with_an_error(
    tmp_path: Path, stage: int, link: dict[str, float] | None, fault: str
):
    case = {"zero": {"stage": stage}, "gpt": SIZES, "steps": 50, "batch": 4, "link": link}
    case |= {"fault": {"step": 2, "rank": 1, "by": fault}}
    survivor, faulty = run_alone("engine_worker", {"case": case}, 2, tmp_path)
    assert faulty.code == (-signal.SIGKILL if fault == "kill" else 1)
    assert survivor.code == 1
    assert survivor.results == {}
    assert re.search(r"RuntimeError: [a-z_]+ of unit \S+ failed", survivor.error)
