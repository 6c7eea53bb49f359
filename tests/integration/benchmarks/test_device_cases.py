"""The trainings of the GPU checks, on CPU ranks: the same worker, the same judgement."""

import pytest

from benchmarks.device.engine import Case, find_case_faults, run_cases

pytestmark = pytest.mark.ranks

SMALL = {"layers": 2, "hidden": 64, "steps": 3}
CASES = {
    "stage 3": Case(zero={"stage": 3}, **SMALL),
    "stage 2 bfloat16": Case(zero={"stage": 2, "dtype": "bfloat16"}, **SMALL),
    "Pa+cpu": Case(mp=2, activations={"checkpoint": True, "partition": True, "host": True}, **SMALL),
    "refused": Case(zero={"stage": 4}, **SMALL),
}


def test_cases_run_on_real_ranks_and_an_error_is_one_cases_own() -> None:
    results = run_cases(CASES, device="cpu")
    for name in ("stage 3", "stage 2 bfloat16", "Pa+cpu"):
        assert find_case_faults(name, results[name], CASES[name].zero.get("dtype", "float32")) == []
    assert find_case_faults("refused", results["refused"], "float32")[0].endswith("it must be 0, 1, 2 or 3")
