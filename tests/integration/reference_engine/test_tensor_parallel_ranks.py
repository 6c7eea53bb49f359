"""Tensor parallelism and activation checkpoints on real gloo ranks, against the plain model in one process.

Elements that a rank moves in its tensor-parallel group, N ranks, b sequences of s tokens, hidden size h
(arXiv 1910.02054, section 8; an all_reduce is 2 (N - 1) / N of the tensor, an all_gather (N - 1) / N):

    block       6 all_reduces of b s h (4 without checkpointing), with Pa an all_gather of b s h
    embedding   an all_reduce of b s h in the forward
    head        an all_reduce of b s h in the backward
    loss        an all_gather of N x 2 b s in float32
"""

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from plain_training import PlainTraining

from zprof.reference_engine.program.gpt import GPTConfig

pytestmark = pytest.mark.ranks

SIZES = {"layers": 3, "hidden": 32, "heads": 4, "vocabulary": 64, "context": 16}
LAYERS, HIDDEN, CONTEXT = SIZES["layers"], SIZES["hidden"], SIZES["context"]
STEPS, BATCH = 3, 8
LINK = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-4}

WHOLE = {"checkpoint": True}
PA = WHOLE | {"partition": True}
WAYS: dict[str, dict[str, bool]] = {
    "none": {},
    "whole": WHOLE,
    "host": WHOLE | {"host": True},
    "MD": WHOLE | {"contiguous": True},
    "Pa": PA,
    "Pa+cpu": PA | {"host": True},
    "Pa MD": PA | {"contiguous": True},
    "Pa+cpu MD": PA | {"host": True, "contiguous": True},
}
#: Share of the checkpoints that the first forward, and a later one, takes from torch's allocator and keeps.
SHARES = {
    "host": (0, 0),
    "MD": (1, 0),
    "Pa": (0.5, 0.5),
    "Pa+cpu": (0, 0),
    "Pa MD": (0.5, 0),
    "Pa+cpu MD": (0, 0),
}


def case(way: str, mp: int, *, tied: bool = False, link: Any = None, **zero: Any) -> dict[str, Any]:
    made = {"mp": mp, "gpt": SIZES | {"tied": tied}, "activations": WAYS[way], "link": link, "zero": zero}
    return made | {"steps": STEPS, "batch": BATCH}


#: By ranks.  Two ranks meet every way; four ranks what data parallelism beside it could change.
CASES: dict[int, dict[str, Any]] = {
    2: {way: case(way, 2, stage=0 if index % 2 else 3) | {"measured": True} for index, way in enumerate(WAYS)}
    | {
        "tied": case("none", 2, stage=0, tied=True),
        "accumulated": case("Pa+cpu MD", 2, stage=0, micro_batches=2),
    },
    4: {
        "none": case("none", 2, stage=0),
        "Pa": case("Pa", 2, stage=3),
        "tied": case("Pa+cpu MD", 2, stage=3, tied=True),
        "accumulated": case("Pa MD", 2, stage=2, micro_batches=2),
        "modelled": case("Pa+cpu", 2, stage=3, link=LINK),
        "in fours": case("Pa", 4, stage=0),
    },
}
NAMES = [
    pytest.param(ranks, name, marks=[pytest.mark.slow] if ranks > 2 else [])
    for ranks in CASES
    for name in CASES[ranks]
]


@pytest.fixture(scope="module")
def seen(run_on):
    """What each of N ranks saw of a case."""

    @cache
    def run(ranks: int) -> list[dict[str, Any]]:
        return run_on(ranks, "engine_worker", CASES[ranks])

    return lambda ranks, name: [results[name] for results in run(ranks)]


@cache
def plain_losses(tied: bool) -> list[float]:
    return PlainTraining(gpt=GPTConfig(**SIZES, tied=tied), steps=STEPS, batch=BATCH).losses()


@pytest.mark.parametrize(("ranks", "name"), NAMES)
def test_losses_equal_the_plain_model_and_ranks_with_the_same_data_to_the_bit(seen, ranks: int, name: str):
    losses: dict[int, list[float]] = {}
    for rank in seen(ranks, name):
        own = [note["loss"] for note in rank["notes"][1:]]
        assert losses.setdefault(rank["place"][0], own) == own
        assert rank["losses"] == pytest.approx(plain_losses(name == "tied"), rel=1e-5)


@pytest.mark.parametrize(("ranks", "name"), NAMES)
def test_neighbours_share_a_model_whose_parts_stay_equal_to_the_bit(seen, ranks: int, name: str):
    mp = CASES[ranks][name]["mp"]
    dp = ranks // mp
    places = [rank["place"] for rank in seen(ranks, name)]
    assert places == [[row, column] for row in range(dp) for column in range(mp)]
    whole = [rank["digests"]["whole"] for rank in seen(ranks, name)]
    assert whole == [whole[0]] * ranks
    assert "blocks.0.projection.bias" in whole[0]
    split = [rank["digests"]["split"] for rank in seen(ranks, name)]
    assert split == split[:mp] * dp
    assert split[0] != split[1]
    # A modelled link keeps the group in which its threads meet, to the end of the default group.
    groups = [rank["groups_left"] for rank in seen(ranks, name)]
    assert groups == [2 if name == "modelled" else 0] * ranks


@pytest.mark.parametrize(("ranks", "name"), NAMES)
def test_every_step_moves_what_the_paper_says_to_the_byte(seen, ranks: int, name: str):
    shape = CASES[ranks][name]
    way, others = shape["activations"], shape["mp"] - 1
    tokens = BATCH // (ranks // shape["mp"]) * CONTEXT
    sent = 4 * tokens * HIDDEN * others // shape["mp"]
    all_reduces = LAYERS * (6 if way.get("checkpoint") else 4) + 2
    loss = 4 * 2 * tokens * others
    expected = {
        "all_reduce": 2 * all_reduces * sent,
        "all_gather": loss + (LAYERS * sent if way.get("partition") else 0),
    }
    for rank in seen(ranks, name):
        totals = [Counter(note["moved"][1]) for note in rank["notes"]]
        assert [after - before for before, after in pairwise(totals)] == [expected] * STEPS


@pytest.mark.parametrize("way", SHARES)
def test_the_device_keeps_a_share_of_the_checkpoints_or_none(seen, way: str):
    checkpoints = LAYERS * BATCH * CONTEXT * HIDDEN * 4
    for rank, whole in zip(seen(2, way), seen(2, "whole"), strict=True):
        first, *_, last = zip(whole["forward_bytes"], rank["forward_bytes"], strict=True)
        saved = [of_whole - of_way for of_whole, of_way in (first, last)]
        assert saved == [checkpoints * (1 - share) for share in SHARES[way]]
    # Without checkpointing a block leaves its input, two normed ones, and more.
    plain, whole = (seen(2, name)[0]["forward_bytes"][-1] for name in ("none", "whole"))
    assert plain - whole > 4 * checkpoints
