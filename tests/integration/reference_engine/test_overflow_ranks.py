"""Real gloo ranks: one norm over all shards, one decision about an overflow that one rank has seen."""

import math
from typing import Any

import pytest
from plain_training import PlainTraining

from zprof.reference_engine.program.gpt import GPTConfig

pytestmark = pytest.mark.ranks

RANKS = 2
STAGES = range(4)
STEPS, BATCH, CLIP = 8, 4, 0.2
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "vocabulary": 31, "context": 8}
PLANTED_STEP = 3
SCALE = 512.0


def case(**settings: Any) -> dict[str, Any]:
    return {"zero": settings, "gpt": SIZES, "steps": STEPS, "batch": BATCH, "numbers": True}


def planted(case: dict[str, Any], rank: int, value: str) -> dict[str, Any]:
    return case | {"plant": {"rank": rank, "step": PLANTED_STEP, "value": value}}


@pytest.fixture(scope="module")
def ranks(run_on) -> list[dict[str, Any]]:
    table = {}
    for stage in STAGES:
        scaled = {"stage": stage, "dtype": "float16", "loss_scale": {"initial": SCALE, "growth_interval": 3}}
        table[f"{stage} clipped"] = case(stage=stage, clip_norm=CLIP)
        table[f"{stage} plain"] = case(stage=stage)
        table[f"{stage} inf"] = planted(case(**scaled), stage % RANKS, "inf")
        table[f"{stage} nan"] = planted(case(stage=stage, clip_norm=CLIP), (stage + 1) % RANKS, "nan")
    return run_on(RANKS, "engine_worker", table)


@pytest.mark.parametrize("stage", STAGES)
def test_clipped_training_equals_torch_with_one_norm_of_eight_bytes(ranks, stage):
    plain = PlainTraining(gpt=GPTConfig(**SIZES), steps=STEPS, batch=BATCH, clip_norm=CLIP).steps_taken()
    norms = [[note["norm"] for note in rank[f"{stage} clipped"]["notes"][1:]] for rank in ranks]
    assert norms[0] == norms[1]  # to the last bit
    assert norms[0] == pytest.approx([norm for _, norm in plain], rel=1e-5)
    assert min(norms[0]) > 2 * CLIP  # or nothing was clipped
    for rank in ranks:
        assert rank[f"{stage} clipped"]["losses"] == pytest.approx([loss for loss, _ in plain], rel=1e-5)
    clipped, plain_moved = (
        ranks[0][f"{stage} {name}"]["notes"][-1]["moved"][0] for name in ("clipped", "plain")
    )
    more = {kind: clipped[kind] - plain_moved.get(kind, 0) for kind in clipped}
    each = 8 * 2 * (RANKS - 1) // RANKS
    assert {k: moved for k, moved in more.items() if moved} == ({"all_reduce": STEPS * each} if stage else {})


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks, stage, value):
    before, at = PLANTED_STEP - 1, PLANTED_STEP
    for rank in ranks:
        steps = rank[f"{stage} {value}"]["notes"][1:]
        assert [step["counts"] for step in steps] == [[1], [2], [3], [3], [4], [5], [6], [7]]
        assert [index for index, step in enumerate(steps) if not math.isfinite(step["norm"])] == [at]
        for key in ("weights", "moments"):
            assert steps[at][key] == steps[before][key]
        assert steps[at + 1]["weights"] != steps[at]["weights"]
        if value == "inf":
            assert [step["scale"] / SCALE for step in steps] == [1, 1, 2, 1, 1, 1, 2, 2]
    assert len({tuple(rank[f"{stage} {value}"]["notes"][-1]["weights"]) for rank in ranks}) == 1
