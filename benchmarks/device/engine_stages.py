"""Stages 0-3 on CUDA tensors, 2 gloo ranks on one device: losses, state bytes, peaks, with and without MD."""

from typing import Any

from benchmarks.device.engine_cases import Case, run_cases
from benchmarks.device.engine_judge import complaints, summary
from benchmarks.device.row import CheckFailed

DTYPES = ("float32", "bfloat16", "float16")


def cases() -> dict[str, Case]:
    """Every stage in every dtype; float16 scales its loss, float32 clips."""
    made = {}
    for stage in range(4):
        for dtype in DTYPES:
            zero: dict[str, Any] = {"stage": stage, "dtype": dtype}
            if dtype == "float16":
                zero["loss_scale"] = {"initial": 1024.0}
            made[f"stage {stage} {dtype}"] = Case(zero=zero)
        made[f"stage {stage} clip"] = Case(zero={"stage": stage, "clip_norm": 0.5})
        made[f"stage {stage} MD"] = Case(zero={"stage": stage, "defragment": True})
        made[f"stage {stage} stream"] = Case(zero={"stage": stage}, stream=True)
    return made


def measure() -> dict[str, Any]:
    """One entry for each case.

    Raises:
        CheckFailed: losses are not those of a training without the engine, or a case raised.
    """
    return judged(cases(), run_cases(cases()))


def judged(asked: dict[str, Case], seen: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Summaries of all cases, if all are right."""
    figures = {name: summary(ranks) for name, ranks in seen.items()}
    wrong = [
        line
        for name, ranks in seen.items()
        for line in complaints(name, ranks, asked[name].zero.get("dtype", "float32"))
    ]
    if wrong:
        raise CheckFailed("; ".join(wrong), figures)
    return figures
