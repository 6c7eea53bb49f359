"""Accumulated gradients on two real gloo ranks: the mean over ranks and micro-batches, and the bytes."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks
from optional_model import Optional, inputs

pytestmark = pytest.mark.ranks

WORKER = Path(__file__).with_name("gradient_worker.py")
RANKS, MICRO_BATCHES, STEPS = 2, 3, 3
LINK = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-4}
LOW = {"dtype": "bfloat16", "reduce_dtype": "float32"}

#: Pieces of 16 elements: a unit of 35 takes three.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "each": {"reduce_each_micro_batch": True, "defragment": True},
    "no sync": {"reduce_each_micro_batch": False},
    "no sync kept": {"reduce_each_micro_batch": False, "defragment": True, "overlap_reduce": False},
    "pieces": {"constant_buffers": 16, "reduce_buckets": 1},
    "pieces each": {"constant_buffers": 16, "reduce_each_micro_batch": True, "defragment": True},
    "low": LOW,
    "low pieces": LOW | {"constant_buffers": 16, "defragment": True},
}
STAGES = range(4)
WAYS = [(stage, variant) for stage in STAGES for variant in VARIANTS]

Seen = Callable[[int, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What both ranks saw of a case; all run in one start."""
    cases = {}
    for stage, variant in WAYS:
        zero = VARIANTS[variant] | {"stage": stage, "micro_batches": MICRO_BATCHES}
        link = LINK if variant in ("pieces", "each") else None
        cases[f"{stage} {variant}"] = {"zero": zero, "steps": STEPS, "link": link}
    folder = tmp_path_factory.mktemp("accumulation")
    ended = run_ranks(cases, RANKS, folder, timeout_s=120, worker=WORKER)
    assert [rank.code for rank in ended] == [0] * RANKS, [rank.error for rank in ended]
    return lambda stage, variant: [rank.results[f"{stage} {variant}"] for rank in ended]


def reference() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Gradients of the last step and weights after it, by name: one process, torch's AdamW."""
    model = Optional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [
            model(inputs(rank, step * MICRO_BATCHES + micro_batch), (rank + micro_batch) % 4)
            for rank in range(RANKS)
            for micro_batch in range(MICRO_BATCHES)
        ]
        torch.stack(losses).mean().backward()
        optimizer.step()
    gradients = {name: p.grad.flatten() for name, p in model.named_parameters() if p.grad is not None}
    return gradients, {name: p.detach().flatten() for name, p in model.named_parameters()}


def put_together(ranks: list[dict[str, Any]], stage: int) -> dict[str, torch.Tensor]:
    found = {}
    for name, unit in ranks[0]["gradients"].items():
        parts = [rank["gradients"][name]["values"] for rank in ranks]
        if stage == 0:
            assert parts[0] == parts[1]
        flat = torch.tensor(parts[0] if stage == 0 else [value for part in parts for value in part])
        for parameter, offset, numel in unit["slots"]:
            found[parameter] = flat[offset : offset + numel]
    return found


@pytest.mark.parametrize(("stage", "variant"), [way for way in WAYS if "low" not in way[1]])
def test_gradients_and_weights_are_those_of_the_whole_batch(seen: Seen, stage: int, variant: str):
    gradients, weights = reference()
    ranks = seen(stage, variant)
    found = put_together(ranks, stage)
    assert set(found) == set(gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    for rank in ranks:
        for name, weight in weights.items():
            torch.testing.assert_close(torch.tensor(rank["weights"][name]), weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_gradients_reduced_in_fp32_are_near_and_alike_in_one_piece_and_in_several(
    seen: Seen, stage: int
):
    gradients, _ = reference()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    whole, pieces = (put_together(seen(stage, variant), stage) for variant in ("low", "low pieces"))
    for name, gradient in gradients.items():
        assert torch.equal(whole[name], pieces[name])
        # Weights, activations and gradients all have 8 bits, through four layers and three steps.
        torch.testing.assert_close(whole[name], gradient, rtol=0, atol=0.05 * largest)


@pytest.mark.parametrize(("stage", "variant"), WAYS)
def test_a_step_moves_as_many_psi_as_the_stage_and_the_accumulation_say(seen: Seen, stage: int, variant: str):
    settings = VARIANTS[variant]
    each = settings.get("reduce_each_micro_batch", stage >= 2)
    element, wire = (2, 4) if "dtype" in settings else (4, 4)
    reductions = (MICRO_BATCHES if each else 1) * (2 if stage == 0 else 1)
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * MICRO_BATCHES}[stage]
    for rank in seen(stage, variant):
        law = rank["psi"] * (reductions * wire + gathers * element) * (RANKS - 1) // RANKS
        per_step = rank["moved"][:: MICRO_BATCHES + 1]
        assert [after - before for before, after in pairwise(per_step)] == [law] * STEPS
