"""Real gloo ranks: groups, accumulation and parameters without a gradient, as torch.optim.AdamW has them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from groups_worker import SLICES, STEPS, Grouped, trained_by_torch

pytestmark = pytest.mark.ranks

STAGES = range(4)
RANKS = (2, pytest.param(4, marks=pytest.mark.slow))
HALF = 3
LOW = {"dtype": "bfloat16", "reduce_dtype": "float32"}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "once": {"reduce_each_micro_batch": False, "overlap_reduce": False},
    "pieces": {"constant_buffers": 64, "reduce_buckets": 1},
    "kept": {"defragment": True, "reduce_each_micro_batch": True},
    "low": LOW,
    "low pieces": LOW | {"constant_buffers": 64, "defragment": True},
}
#: Every stage meets the default, and half of the others.
WAYS = [(s, name) for s in STAGES for at, name in enumerate(VARIANTS) if at in (0, 4, 5) or (s + at) % 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def seen(run_on, folder: Path):
    """What each rank saw.  Two ranks save after the first half; two, and four, go on at other stages."""

    def cases(ranks: int) -> dict[str, Any]:
        table = {
            f"{stage} {name}": {"zero": {"stage": stage, **VARIANTS[name]}, "steps": [0, STEPS]}
            for stage, name in WAYS
        }
        half: dict[str, Any] = {}
        for stage in STAGES:
            zero = {"zero": {"stage": stage}}
            half[f"{stage} saved"] = zero | {"steps": [0, HALF], "save": str(folder / f"stage{stage}")}
            path = str(folder / f"stage{(stage + ranks + 1) % 4}")
            table[f"{stage} resumed"] = zero | {"steps": [HALF, STEPS], "load": path}
        return half | table if ranks == 2 else table

    @cache
    def run(ranks: int) -> list[dict[str, Any]]:
        if ranks != 2:
            run(2)  # saves
        return run_on(ranks, "groups_worker", cases(ranks))

    return lambda ranks, name: [results[name] for results in run(ranks)]


@pytest.mark.parametrize(
    ("stage", "name"), [way for way in WAYS if "low" not in way[1]] + [(stage, "resumed") for stage in STAGES]
)
@pytest.mark.parametrize("ranks", RANKS)
def test_weights_rates_and_counts_equal_torch_on_the_joined_batch(seen, stage, ranks, name):
    model, optimizer = trained_by_torch(STEPS)
    counts: dict[str, int] = {}
    for rank in seen(ranks, f"{stage} {name}"):
        for key, value in model.state_dict().items():
            found = torch.tensor(rank["weights"][key]).view(value.shape)
            torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-6)
        assert rank["rates"] == pytest.approx([group["lr"] for group in optimizer.param_groups], rel=1e-12)
        assert torch.equal(torch.tensor(rank["weights"]["never"]), Grouped().never)
        counts |= rank["steps"]
    steps = {key: int(optimizer.state[p]["step"]) for key, p in model.named_parameters() if key != "never"}
    assert counts == {key: count for key, count in steps.items() if count < STEPS} | {"never": 0}


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_gradients_reduced_in_fp32_are_alike_in_one_piece_and_in_several(seen, stage):
    whole, pieces = (seen(2, f"{stage} {name}") for name in ("low", "low pieces"))
    assert [rank["weights"] for rank in whole] == [rank["weights"] for rank in pieces]


def test_a_checkpoint_has_the_counts_of_all_ranks_and_the_group_of_each_parameter(seen, folder):
    seen(2, "3 saved")
    content = json.loads((folder / "stage3" / "zero.json").read_text())["content"]
    assert content["optimizer"]["steps"] == {"layers.1.scale": HALF - 1, "never": 0}
    assert {name: record["group"] for name, record in content["parameters"].items()} == {
        name: 1 if name.endswith("bias") else 2 if name.endswith("scale") else 0
        for name, _ in Grouped().named_parameters()
    }


@pytest.mark.parametrize(("stage", "variant"), WAYS)
def test_a_step_moves_as_many_psi_as_the_stage_and_the_accumulation_say(seen, stage, variant):
    settings, micro_batches = VARIANTS[variant], SLICES // 2
    each = settings.get("reduce_each_micro_batch", stage >= 2)
    element, wire = (2, 4) if "dtype" in settings else (4, 4)
    reductions = (micro_batches if each else 1) * (2 if stage == 0 else 1)
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * micro_batches}[stage]
    for rank in seen(2, f"{stage} {variant}"):
        assert rank["moved"] == [rank["psi"] * (reductions * wire + gathers * element) // 2] * STEPS
