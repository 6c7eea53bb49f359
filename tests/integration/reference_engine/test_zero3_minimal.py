"""zero3_minimal against the full engine on real ranks: equal weights, bit for bit, and stage 3's memory."""

from typing import Any

import pytest

pytestmark = pytest.mark.ranks

RANKS, STEPS = 2, 4

#: Units in memory in one step, in each block's forward, after it, in each block's backward, and after it.
IN_MEMORY = [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4], [], [0, 3, 4], [0, 2, 3], [0, 1, 2], [0, 1], []]


@pytest.fixture(scope="module")
def results(run_on) -> list[dict[str, Any]]:
    ranks = run_on(RANKS, "minimal_worker", {"train": {"steps": STEPS}})
    return [rank["train"] for rank in ranks]


def test_weights_and_losses_are_exactly_those_of_the_full_engine(results: list[dict[str, Any]]):
    for rank in results:
        assert rank["minimal"]["losses"] == rank["full"]["losses"]
        assert rank["minimal"]["weights"] == rank["full"]["weights"]
    assert results[0]["minimal"]["weights"] == results[1]["minimal"]["weights"]
    losses = results[0]["minimal"]["losses"]
    assert losses[-1] < losses[0] - 0.1  # equal weights prove little if no weight changes


def test_a_unit_is_in_memory_while_it_computes_and_one_ahead_of_that(results: list[dict[str, Any]]):
    for rank in results:
        minimal = rank["minimal"]
        assert minimal["in_memory"] == IN_MEMORY * STEPS
        elements = minimal["unit_elements"]
        peak = max(sum(elements[unit] for unit in units) for units in minimal["in_memory"])
        assert peak <= elements[0] + 2 * elements[1] < sum(elements)
        assert [RANKS * shard for shard in minimal["shard_elements"]] == elements
