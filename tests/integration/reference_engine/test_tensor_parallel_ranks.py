"""Tensor parallelism and activation checkpoints on real gloo ranks, against the plain model in one process.

Elements that a rank moves in its tensor-parallel group, N ranks, b sequences of s tokens, hidden size h
(arXiv 1910.02054, section 8; an all_reduce is 2 (N - 1) / N of the tensor, an all_gather (N - 1) / N):

    block       6 all_reduces of b s h (4 without checkpointing), with Pa an all_gather of b s h
    embedding   an all_reduce of b s h in the forward
    head        an all_reduce of b s h in the backward
    loss        an all_gather of N x 2 b s in float32
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks
from engine_reference import mixed_precision_losses, reference_losses

from zprof.reference_engine.program.gpt import GPTConfig

pytestmark = pytest.mark.ranks

WORKER = Path(__file__).with_name("tensor_parallel_worker.py")
SIZES = {"layers": 3, "hidden": 32, "heads": 4, "vocabulary": 64, "context": 16}
LAYERS, HIDDEN, CONTEXT = SIZES["layers"], SIZES["hidden"], SIZES["context"]
STEPS, BATCH = 8, 8
LINK = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-4}
FP32_TOLERANCE = 1e-5
#: The summands of an all_reduce are rounded one by one, which the plain model does not do: half of a last
#: place each.  Both are compared with the plain model in bfloat16, the coarser of the two.
HALF_TOLERANCE = 2.0**-8
HALVES = ("bfloat16", "float16")

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
MEASURED = (0, STEPS - 1)
GRIDS = {2: (1, 2), 4: (2, 2)}


def case(ranks: int, way: str = "none", *, tied: bool = False, **rest: Any) -> dict[str, Any]:
    dp, mp = rest.pop("grid", GRIDS[ranks])
    link = rest.pop("link", None)
    gpt = SIZES | {"tied": tied}
    made = {"dp": dp, "mp": mp, "gpt": gpt, "activations": WAYS[way], "steps": STEPS, "batch": BATCH}
    return made | {"zero": rest, "link": link, "measured_steps": MEASURED if ranks == 2 else []}


def cases(ranks: int) -> dict[str, Any]:
    """Two ranks meet every way; four ranks what data parallelism beside it could change."""
    ways = {way: (0, 3) for way in WAYS} if ranks == 2 else {"none": (0, 3), "whole": (3,), "Pa": (0, 3)}
    table = {f"{way} {stage}": case(ranks, way, stage=stage) for way in ways for stage in ways[way]}
    for way, stage in (("none", 0), ("Pa", 1), ("Pa+cpu MD", 3)):
        table[f"{way} {stage} tied"] = case(ranks, way, stage=stage, tied=True)
    for way, stage in (("Pa+cpu MD", 0), ("Pa", 2), ("Pa MD", 3)):
        table[f"{way} {stage} accumulated"] = case(ranks, way, stage=stage, micro_batches=2)
    if ranks == 2:
        for dtype in HALVES:
            table[f"Pa 3 {dtype}"] = case(ranks, "Pa", stage=3, dtype=dtype)
    else:
        table["Pa+cpu 3 modelled"] = case(ranks, "Pa+cpu", stage=3, link=LINK)
        table["Pa 0 in fours"] = case(ranks, "Pa", stage=0, grid=(1, 4))
    return table


NAMES = [(ranks, name) for ranks in GRIDS for name in cases(ranks)]
FULL_PRECISION = [(ranks, name) for ranks, name in NAMES if "float" not in name]

Seen = Callable[[int, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each of N ranks saw of a case; all cases of N ranks run in one start."""

    @cache
    def run(ranks: int) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"mesh{ranks}")
        ended = run_ranks(cases(ranks), ranks, folder, timeout_s=240, worker=WORKER)
        assert [rank.code for rank in ended] == [0] * ranks, [rank.error for rank in ended]
        return [rank.results for rank in ended]

    return lambda ranks, name: [results[name] for results in run(ranks)]


@pytest.fixture(autouse=True, scope="module")
def _one_thread_as_a_rank_has() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def plain_losses(tied: bool) -> list[float]:
    return reference_losses(GPTConfig(**SIZES, tied=tied), steps=STEPS, batch=BATCH)


def mean_losses(ranks: list[dict[str, Any]]) -> list[float]:
    return [sum(of_step) / len(of_step) for of_step in zip(*(rank["losses"] for rank in ranks), strict=True)]


@pytest.mark.parametrize(("ranks", "name"), FULL_PRECISION)
def test_losses_equal_the_plain_model_in_one_process(seen: Seen, ranks: int, name: str):
    losses = mean_losses(seen(ranks, name))
    assert losses == pytest.approx(plain_losses("tied" in name), rel=FP32_TOLERANCE)


@pytest.mark.parametrize("dtype", HALVES)
def test_losses_of_16_bits_equal_the_plain_model_in_16_bits(seen: Seen, dtype: str):
    plain = mixed_precision_losses(GPTConfig(**SIZES), steps=STEPS, batch=BATCH, slices=1)
    assert mean_losses(seen(2, f"Pa 3 {dtype}")) == pytest.approx(plain, rel=HALF_TOLERANCE)


@pytest.mark.parametrize(("ranks", "name"), NAMES)
def test_ranks_with_the_same_data_see_the_same_loss_to_the_bit(seen: Seen, ranks: int, name: str):
    losses: dict[int, list[float]] = {}
    for rank in seen(ranks, name):
        assert losses.setdefault(rank["place"][0], rank["losses"]) == rank["losses"]


@pytest.mark.parametrize(("ranks", "name"), NAMES)
def test_what_is_whole_on_every_rank_stays_equal_to_the_bit(seen: Seen, ranks: int, name: str):
    digests = [rank["digests"]["whole"] for rank in seen(ranks, name)]
    assert digests == [digests[0]] * ranks
    assert "blocks.0.projection.bias" in digests[0]


@pytest.mark.parametrize("name", ["none 0", "Pa 3"])
def test_what_is_split_is_equal_over_data_parallel_ranks_alone(seen: Seen, name: str):
    by_place = {tuple(rank["place"][:2]): rank["digests"]["split"] for rank in seen(4, name)}
    assert by_place[0, 0] == by_place[1, 0] != by_place[0, 1] == by_place[1, 1]


@pytest.mark.parametrize(
    ("ranks", "dp", "mp", "name"), [(2, 1, 2, "none 0"), (4, 2, 2, "none 0"), (4, 1, 4, "Pa 0 in fours")]
)
def test_neighbours_share_a_model(seen: Seen, ranks: int, dp: int, mp: int, name: str):
    places = [rank["place"] for rank in seen(ranks, name)]
    assert places == [[row, column, row, column] for row in range(dp) for column in range(mp)]


@pytest.mark.parametrize(("ranks", "name"), NAMES)
def test_a_closed_mesh_leaves_no_group(seen: Seen, ranks: int, name: str):
    # A modelled link keeps the group in which its threads meet, to the end of the default group.
    meetings = 2 if "modelled" in name else 0
    assert [rank["groups_left"] for rank in seen(ranks, name)] == [meetings] * ranks


@pytest.mark.parametrize(("ranks", "name"), NAMES)
def test_every_step_moves_what_the_paper_says_to_the_byte(seen: Seen, ranks: int, name: str):
    shape = cases(ranks)[name]
    way, element = shape["activations"], 2 if "float" in name else 4
    others = shape["mp"] - 1
    tokens = BATCH // shape["dp"] * CONTEXT
    sent = element * tokens * HIDDEN * others // shape["mp"]
    all_reduces = LAYERS * (6 if way.get("checkpoint") else 4) + 2
    loss = 4 * 2 * tokens * others
    law = {
        "all_reduce": 2 * all_reduces * sent,
        "all_gather": loss + (LAYERS * sent if way.get("partition") else 0),
    }
    for rank in seen(ranks, name):
        moved = [without_overflow_flags(of_step, name) for of_step in rank["moved"]]
        assert moved == [law] * STEPS


def without_overflow_flags(moved: dict[str, int], name: str) -> dict[str, int]:
    """Ranks agree on an overflow of float16 in 8 bytes a step, which go around the ring once and a half."""
    flags = {"all_reduce": 8} if "float16" in name.split() else {}
    return {kind: count - flags.get(kind, 0) for kind, count in moved.items() if count}


@pytest.mark.parametrize("stage", [0, 3])
def test_pa_moves_a_twelfth_of_tensor_parallelism_more(seen: Seen, stage: int):
    def moved(name: str) -> int:
        return sum(seen(2, f"{name} {stage}")[0]["moved"][-1].values())

    of_blocks = LAYERS * 12 * BATCH * CONTEXT * HIDDEN * 4 // 2
    assert moved("Pa") - moved("whole") == of_blocks // 12
    assert moved("Pa+cpu MD") == moved("Pa")
    assert moved("host") == moved("MD") == moved("whole")


#: Share of the checkpoints that the first forward, and a later one, takes from torch's allocator and keeps.
SHARES = {
    "host": (0, 0),
    "MD": (1, 0),
    "Pa": (0.5, 0.5),
    "Pa+cpu": (0, 0),
    "Pa MD": (0.5, 0),
    "Pa+cpu MD": (0, 0),
}


@pytest.mark.parametrize("way", SHARES)
@pytest.mark.parametrize("stage", [0, 3])
def test_the_device_keeps_a_share_of_the_checkpoints_or_none(seen: Seen, way: str, stage: int):
    checkpoints = LAYERS * BATCH * CONTEXT * HIDDEN * 4
    for rank, whole in zip(seen(2, f"{way} {stage}"), seen(2, f"whole {stage}"), strict=True):
        pairs = zip(whole["forward_bytes"], rank["forward_bytes"], strict=True)
        saved = [of_whole - of_way for of_whole, of_way in pairs]
        assert saved == [checkpoints * (1 - share) for share in SHARES[way]]


@pytest.mark.parametrize("stage", [0, 3])
def test_checkpoints_are_what_a_forward_leaves_of_its_blocks(seen: Seen, stage: int):
    # Without checkpointing a block leaves its input, two normed ones, and more.
    plain, whole = (seen(2, f"{way} {stage}")[0]["forward_bytes"][-1] for way in ("none", "whole"))
    assert plain - whole > LAYERS * 4 * BATCH * CONTEXT * HIDDEN * 4
