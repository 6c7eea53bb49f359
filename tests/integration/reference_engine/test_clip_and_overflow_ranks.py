"""Real gloo ranks: one norm over all shards, one decision about an overflow that one rank has seen."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks

from zprof.reference_engine.program.data import make_global_batch
from zprof.reference_engine.program.gpt import GPT, GPTConfig

pytestmark = pytest.mark.ranks

RANKS = 2
STAGES = range(4)
STEPS, BATCH, CLIP = 8, 4, 0.2
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "vocabulary": 31, "context": 8}
PLANTED_STEP = 3
SCALE = 512.0


def case(**settings: Any) -> dict[str, Any]:
    return {"zero": settings, "gpt": SIZES, "steps": STEPS, "batch": BATCH}


def planted(case: dict[str, Any], rank: int, value: str) -> dict[str, Any]:
    return case | {"planted": {"rank": rank, "step": PLANTED_STEP, "value": value}}


def cases() -> dict[str, Any]:
    table = {}
    for stage in STAGES:
        scaled = {"stage": stage, "dtype": "float16", "loss_scale": {"initial": SCALE, "growth_interval": 3}}
        table[f"{stage} clipped"] = case(stage=stage, clip_norm=CLIP)
        table[f"{stage} plain"] = case(stage=stage)
        table[f"{stage} float16"] = case(**scaled)
        for rank in range(RANKS):
            table[f"{stage} inf on {rank}"] = planted(case(**scaled), rank, "inf")
        table[f"{stage} nan"] = planted(case(stage=stage, clip_norm=CLIP), RANKS - 1, "nan")
    return table


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    worker = Path(__file__).with_name("clip_worker.py")
    ended = run_ranks(cases(), RANKS, tmp_path_factory.mktemp("clip"), timeout_s=120, worker=worker)
    assert [rank.code for rank in ended] == [0] * RANKS, [rank.error for rank in ended]
    return [rank.results for rank in ended]


@cache
def reference() -> list[tuple[float, float]]:
    """Loss and norm of every step: one process, the whole batch, torch's clipping and AdamW."""
    torch.manual_seed(0)
    gpt = GPTConfig(**SIZES)
    model = GPT(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens = make_global_batch(
            seed=0, step=step, batch=BATCH, time=gpt.context, vocabulary=gpt.vocabulary
        )
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        seen.append((float(loss.detach()), float(norm)))
    return seen


def of_steps(ranks: list[dict[str, Any]], name: str, key: str) -> list[list[Any]]:
    return [[step[key] for step in rank[name]["steps"]] for rank in ranks]


@pytest.mark.parametrize("stage", STAGES)
def test_clipped_training_equals_torch_on_one_process(ranks, stage):
    losses = of_steps(ranks, f"{stage} clipped", "loss")
    means = [sum(of_ranks) / RANKS for of_ranks in zip(*losses, strict=True)]
    assert means == pytest.approx([loss for loss, _ in reference()], rel=1e-5)
    for norms in of_steps(ranks, f"{stage} clipped", "norm"):
        assert norms == pytest.approx([norm for _, norm in reference()], rel=1e-5)
        assert min(norms) > 2 * CLIP  # or nothing was clipped


@pytest.mark.parametrize("stage", STAGES)
def test_all_ranks_have_the_same_norm_to_the_last_bit(ranks, stage):
    first, second = of_steps(ranks, f"{stage} clipped", "norm")
    assert first == second


@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_moves_eight_bytes_a_step_and_only_where_shards_differ(ranks, stage):
    clipped, plain = ranks[0][f"{stage} clipped"]["moved"], ranks[0][f"{stage} plain"]["moved"]
    more = {kind: clipped[kind] - plain.get(kind, 0) for kind in clipped}
    each = 8 * 2 * (RANKS - 1) // RANKS
    assert {kind: moved for kind, moved in more.items() if moved} == (
        {"all_reduce": STEPS * each} if stage else {}
    )


@pytest.mark.parametrize("stage", STAGES)
def test_float16_trains_and_its_scale_grows(ranks, stage):
    losses = of_steps(ranks, f"{stage} float16", "loss")
    assert all(rank[-1] < rank[0] for rank in losses)
    grown = [SCALE, SCALE, 2 * SCALE, 2 * SCALE, 2 * SCALE, 4 * SCALE, 4 * SCALE, 4 * SCALE]
    assert of_steps(ranks, f"{stage} float16", "scale") == [grown] * RANKS


@pytest.mark.parametrize("faulty", range(RANKS))
@pytest.mark.parametrize("stage", STAGES)
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks, stage, faulty):
    name = f"{stage} inf on {faulty}"
    before, at = PLANTED_STEP - 1, PLANTED_STEP
    for rank in ranks:
        steps = rank[name]["steps"]
        assert [step["counts"] for step in steps] == [[1], [2], [3], [3], [4], [5], [6], [7]]
        assert not math.isfinite(steps[at]["norm"])
        assert all(math.isfinite(step["norm"]) for index, step in enumerate(steps) if index != at)
        assert [steps[at][key] for key in ("weights", "moments")] == [
            steps[before][key] for key in ("weights", "moments")
        ]
        assert steps[at + 1]["weights"] != steps[at]["weights"]
        assert [step["scale"] / SCALE for step in steps] == [1, 1, 2, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("stage", STAGES)
def test_a_nan_on_one_rank_skips_the_clipped_step_on_all(ranks, stage):
    for rank in ranks:
        steps = rank[f"{stage} nan"]["steps"]
        assert [step["counts"] for step in steps] == [[1], [2], [3], [3], [4], [5], [6], [7]]
        assert steps[PLANTED_STEP]["weights"] == steps[PLANTED_STEP - 1]["weights"]
        assert all(math.isfinite(step["loss"]) for step in steps)


@pytest.mark.parametrize("name", sorted(cases()))
def test_all_ranks_end_with_the_same_weights(ranks, name):
    first, second = (rank[name]["steps"][-1]["weights"] for rank in ranks)
    assert first == second
    assert all(math.isfinite(value) for value in first)
