"""Real gloo ranks: groups and parameters without a gradient, step by step as torch.optim.AdamW has them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks
from grouped_model import SLICES, STEPS, Grouped, trained_by_torch

pytestmark = pytest.mark.ranks

WORKER = Path(__file__).with_name("groups_worker.py")
STAGES = range(4)
RANKS = (2, pytest.param(4, marks=pytest.mark.slow))
HALF = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    " once": {"reduce_each_micro_batch": False},
    " pieces": {"constant_buffers": 64},
    " kept": {"defragment": True},
}

Seen = Callable[[int, str], list[dict[str, Any]]]


def case(stage: int, **more: Any) -> dict[str, Any]:
    return {"zero": {"stage": stage}, "steps": [0, STEPS], **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def seen(folder: Path) -> Seen:
    """What each rank saw.  Two ranks save after the first half; one, two and four go on at other stages."""

    def cases(ranks: int) -> dict[str, Any]:
        table = {
            f"{stage}{name}": case(stage, zero={"stage": stage, **settings})
            for stage in STAGES
            for name, settings in VARIANTS.items()
        }
        if ranks == 2:
            for stage in STAGES:
                path = str(folder / f"stage{stage}")
                table[f"{stage} saved"] = case(stage, steps=[0, HALF], save=path)
        for stage in STAGES:
            path = str(folder / f"stage{(stage + ranks) % 4}")
            table[f"{stage} resumed"] = case(stage, steps=[HALF, STEPS], load=path)
        return table

    @cache
    def run(ranks: int) -> list[dict[str, Any]]:
        if ranks != 2:
            run(2)  # saves
        place = folder / f"ranks{ranks}"
        place.mkdir()
        ended = run_ranks(cases(ranks), ranks, place, timeout_s=240, worker=WORKER)
        assert [rank.code for rank in ended] == [0] * ranks, [rank.error for rank in ended]
        return [rank.results for rank in ended]

    return lambda ranks, name: [results[name] for results in run(ranks)]


@cache
def reference() -> tuple[Grouped, torch.optim.Optimizer]:
    return trained_by_torch(STEPS)


def check(ranks: list[dict[str, Any]]) -> None:
    model, optimizer = reference()
    for rank in ranks:
        for name, value in model.state_dict().items():
            found = torch.tensor(rank["weights"][name]).view(value.shape)
            torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-6)
        assert rank["rates"] == pytest.approx([group["lr"] for group in optimizer.param_groups], rel=1e-12)
        assert torch.equal(torch.tensor(rank["weights"]["never"]), Grouped().never)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("stage", STAGES)
def test_groups_schedules_and_missing_gradients_equal_torch_on_the_joined_batch(seen, stage, ranks, variant):
    check(seen(ranks, f"{stage}{variant}"))


@pytest.mark.parametrize("ranks", [1, *RANKS])
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_resumed_at_another_stage_and_number_of_ranks_equals_torch(seen, stage, ranks):
    check(seen(ranks, f"{stage} resumed"))


def test_step_counts_are_those_of_torch(seen):
    model, optimizer = reference()
    counts = {
        name: int(optimizer.state[p]["step"]) for name, p in model.named_parameters() if name != "never"
    }
    for stage in STAGES:
        found: dict[str, int] = {}
        for rank in seen(2, str(stage)):
            found |= rank["steps"]
        assert found == {name: count for name, count in counts.items() if count < STEPS} | {"never": 0}


def test_a_checkpoint_has_the_counts_of_all_ranks_and_the_group_of_each_parameter(seen, folder):
    seen(2, "3 saved")
    content = json.loads((folder / "stage3" / "zero.json").read_text())["content"]
    assert content["optimizer"]["steps"] == {"layers.1.scale": HALF - 1, "never": 0}
    assert {name: record["group"] for name, record in content["parameters"].items()} == {
        name: 1 if name.endswith("bias") else 2 if name.endswith("scale") else 0
        for name, _ in Grouped().named_parameters()
    }


@pytest.mark.parametrize("stage", STAGES)
def test_groups_and_missing_gradients_move_not_a_byte_more(seen, stage):
    micro_batches = SLICES // 2
    each = {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]
    for rank in seen(2, str(stage)):
        assert rank["moved"] == [each * rank["psi"] * 4 // 2] * STEPS
