"""zero3_minimal against the full engine on real gloo ranks: the same weights, bit for bit, and the memory
of stage 3."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks

pytestmark = pytest.mark.ranks

WORKER = Path(__file__).with_name("minimal_worker.py")
RANKS, STEPS = 2, 4

#: Units in memory, in the order of one step: 0 is the root, and blocks count from 1.
IN_MEMORY = [
    ("forward of embedding", [0, 1]),
    ("forward of block 1", [0, 1, 2]),
    ("forward of block 2", [0, 2, 3]),
    ("forward of block 3", [0, 3, 4]),
    ("forward of block 4", [0, 4]),
    ("forward of head", [0]),
    ("after forward", []),
    ("backward of head", [0, 4]),
    ("backward of block 4", [0, 3, 4]),
    ("backward of block 3", [0, 2, 3]),
    ("backward of block 2", [0, 1, 2]),
    ("backward of block 1", [0, 1]),
    ("backward of embedding", [0]),
    ("after backward", []),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    cases = {"train": {"steps": STEPS}}
    ended = run_ranks(cases, RANKS, tmp_path_factory.mktemp("minimal"), timeout_s=60, worker=WORKER)
    assert [rank.code for rank in ended] == [0] * RANKS, [rank.error for rank in ended]
    return [rank.results["train"] for rank in ended]


def test_weights_and_losses_are_exactly_those_of_the_full_engine(results: list[dict[str, Any]]):
    for rank in results:
        full, minimal = rank["full"], rank["minimal"]
        assert minimal["losses"] == full["losses"]
        assert set(minimal["weights"]) == set(full["weights"])
        for name, weight in full["weights"].items():
            assert torch.equal(torch.tensor(minimal["weights"][name]), torch.tensor(weight)), name
    assert results[0]["minimal"]["weights"] == results[1]["minimal"]["weights"]


def test_the_model_learns_and_its_units_are_padded(results: list[dict[str, Any]]):
    """Equal weights prove little if no weight changes, or no shard has padding."""
    losses = [
        sum(step) / RANKS for step in zip(*(rank["minimal"]["losses"] for rank in results), strict=True)
    ]
    assert losses[-1] < losses[0] - 0.1
    elements = results[0]["minimal"]["unit_elements"]
    assert sum(elements) > sum(torch.tensor(w).numel() for w in results[0]["full"]["weights"].values())


def test_a_unit_is_in_memory_while_it_computes_and_one_ahead_of_that(results: list[dict[str, Any]]):
    for rank in results:
        assert [tuple(noted) for noted in rank["minimal"]["in_memory"]] == IN_MEMORY * STEPS
        assert rank["minimal"]["at_rest"] == []


def test_the_peak_of_gathered_units_is_below_the_whole_model(results: list[dict[str, Any]]):
    for rank in results:
        minimal = rank["minimal"]
        elements = minimal["unit_elements"]
        peak = max(sum(elements[unit] for unit in units) for _, units in minimal["in_memory"])
        assert peak <= elements[0] + 2 * elements[1] < sum(elements)
        assert [RANKS * shard for shard in minimal["shard_elements"]] == elements
