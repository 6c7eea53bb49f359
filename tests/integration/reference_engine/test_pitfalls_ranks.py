"""Pitfalls in which ranks must agree, on real gloo ranks: weights of one process, and nobody hangs."""

from typing import Any

import pytest
import torch
from pitfall_worker import reference

pytestmark = pytest.mark.ranks

RANKS = 2
#: Stage 3 gathers what is called: there all ranks must call the same units.
CASES = {
    f"{kind} {stage} {keep}": {"kind": kind, "zero": {"stage": stage, "keep_after_forward": keep}}
    for kind, stages in {
        "tied": (0, 3),
        "frozen": (2, 3),
        "skips": (0, 1, 2),
        "reentrant": (0, 3),
        "fails in forward": (1, 3),
        "fails in backward": (0, 1, 2, 3),
    }.items()
    for stage in stages
    for keep in (("none", "all") if stage == 3 else ("none",))
}


@pytest.fixture(scope="module")
def results(run_on) -> list[dict[str, Any]]:
    return run_on(RANKS, "pitfall_worker", CASES)


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_end_with_the_weights_of_one_process(results: list[dict[str, Any]], name: str):
    expected = reference(CASES[name]["kind"], RANKS)
    for rank in results:
        weights = rank[name]["weights"]
        assert set(weights) == set(expected)
        for key, value in expected.items():
            torch.testing.assert_close(torch.tensor(weights[key]), torch.tensor(value), msg=key)
