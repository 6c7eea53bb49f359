"""Pitfalls in which ranks must agree, on real gloo ranks: weights of one process, and nobody hangs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks
from pitfall_worker import reference

pytestmark = pytest.mark.ranks

WORKER = Path(__file__).with_name("pitfall_worker.py")
RANKS = 2
KINDS = (
    "plain",
    "tied",
    "frozen",
    "skips",
    "twice",
    "checkpointed",
    "reentrant",
    "fails in forward",
    "fails in backward",
)
KEEPS = ("last", "all")


def cases() -> dict[str, Any]:
    table = {
        f"{kind} {stage}": {"kind": kind, "zero": {"stage": stage}}
        for kind in KINDS
        for stage in range(4)
        # Stage 3 gathers what is called: there all ranks must call the same units.
        if (kind, stage) != ("skips", 3)
    }
    for keep in KEEPS:
        for kind in ("plain", "checkpointed", "twice"):
            table[f"{kind} 3 {keep}"] = {"kind": kind, "zero": {"stage": 3, "keep_after_forward": keep}}
    return table


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    ended = run_ranks(cases(), RANKS, tmp_path_factory.mktemp("pitfalls"), timeout_s=100, worker=WORKER)
    assert [rank.code for rank in ended] == [0] * RANKS, [rank.error for rank in ended]
    return [rank.results for rank in ended]


@pytest.mark.parametrize("name", cases())
def test_all_ranks_end_with_the_weights_of_one_process(results: list[dict[str, Any]], name: str):
    expected = reference(cases()[name]["kind"], RANKS)
    for rank in results:
        weights = rank[name]["weights"]
        assert set(weights) == set(expected)
        for key, value in expected.items():
            torch.testing.assert_close(
                torch.tensor(weights[key]), torch.tensor(value), msg=lambda m, k=key: f"{k}: {m}"
            )
