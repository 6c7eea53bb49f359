"""The engine on CUDA tensors: 2 gloo ranks on one device, against the same training without it."""

import math
from typing import Any

import pytest

from benchmarks.device.engine import Case, find_case_faults, run_cases

Results = dict[str, list[dict[str, Any]]]
LARGE = {"layers": 8, "hidden": 1024, "steps": 3}
ZERO_R = {"layers": 6, "hidden": 512}

NUMERICS: dict[str, Case] = {
    **{f"stage {stage}": Case(zero={"stage": stage}) for stage in range(4)},
    **{f"stage {stage} bfloat16": Case(zero={"stage": stage, "dtype": "bfloat16"}) for stage in range(4)},
    **{
        f"stage {stage} float16": Case(
            zero={"stage": stage, "dtype": "float16", "loss_scale": {"initial": 1024.0}}
        )
        for stage in range(4)
    },
    **{f"stage {stage} clip": Case(zero={"stage": stage, "clip_norm": 0.5}) for stage in range(4)},
    **{f"stage {stage} stream": Case(zero={"stage": stage}, stream=True) for stage in range(4)},
    "accumulate": Case(zero={"stage": 2, "micro_batches": 2}),
    "keep": Case(zero={"stage": 3, "keep_after_forward": "all"}),
    "constant buffers": Case(zero={"stage": 3, "constant_buffers": 2**16}),
    "Pa": Case(mp=2, activations={"checkpoint": True, "partition": True}),
    "Pa+cpu": Case(mp=2, activations={"checkpoint": True, "partition": True, "host": True}),
}
MEMORY: dict[str, Case] = {
    "fresh": Case(zero={"stage": 2}, **LARGE),
    "MD": Case(zero={"stage": 2, "defragment": True}, **LARGE),
    "checkpoints": Case(mp=2, activations={"checkpoint": True}, **ZERO_R),
    "checkpoints to the host": Case(
        mp=2, activations={"checkpoint": True, "partition": True, "host": True}, **ZERO_R
    ),
}
OVERFLOW = Case(zero={"stage": 2, "dtype": "float16", "loss_scale": {"initial": 2.0**60}}, steps=3)


@pytest.fixture(scope="module")
def results() -> Results:
    return run_cases(NUMERICS | MEMORY | {"overflow": OVERFLOW}, limit_s=140)


@pytest.mark.parametrize("name", NUMERICS)
def test_losses_are_those_without_the_engine(results: Results, name: str) -> None:
    dtype = NUMERICS[name].zero.get("dtype", "float32")
    assert find_case_faults(name, results[name], dtype) == []


@pytest.mark.parametrize("stage", range(4))
def test_states_obey_the_law_to_the_byte(results: Results, stage: int) -> None:
    def kept(case: int) -> list[int]:
        parameters, gradients, optimizer = results[f"stage {case}"][0]["kept"]
        return [parameters, gradients, optimizer]

    whole = kept(0)
    padded = whole[0]
    divisors = [2 if stage >= 3 else 1, 2 if stage >= 2 else 1, 2 if stage >= 1 else 1]
    seen = kept(stage)
    assert seen[:2] == [padded // divisors[0], padded // divisors[1]]
    assert abs(seen[2] - 2 * padded // divisors[2]) < 256  # step counts of 4 bytes


def test_an_overflow_skips_the_step_on_all_ranks(results: Results) -> None:
    first, second = results["overflow"]
    assert first.get("error") is None
    assert first["losses"] == second["losses"]
    assert all(math.isfinite(loss) for loss in first["losses"])


def test_kept_memory_leaves_less_unused(results: Results) -> None:
    fresh, kept = (results[name][0] for name in ("fresh", "MD"))
    unused = [seen["reserved_bytes"] - seen["peak_bytes"] for seen in (fresh, kept)]
    assert unused[1] < unused[0] or kept["segments"] < fresh["segments"], (unused, fresh, kept)


def test_checkpoints_on_the_host_leave_the_device(results: Results) -> None:
    on_device, on_host = (results[name][0] for name in ("checkpoints", "checkpoints to the host"))
    assert on_host["peak_bytes"] < on_device["peak_bytes"]
