"""Train the engine on CUDA tensors with real gloo ranks on one device: all stages, Pa, Pa+cpu, CB and MD.

A case passes if its losses match those of a training without the engine.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.device.checks import CheckFailed, one_line
from benchmarks.steps.launch import ROOT, free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training.  ``zero`` and ``activations`` are fields of the engine's configs, dtypes by name.

    ``stream``: the whole loop runs on a stream of its own.
    """

    zero: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, Any] = field(default_factory=dict)
    mp: int = 1
    stream: bool = False
    layers: int = 4
    hidden: int = 256
    steps: int = 4


def run_cases(
    cases: dict[str, Case],
    *,
    device: str = "cuda",
    ranks: int = 2,
    backend: str = "gloo",
    limit_s: float = 100,
) -> dict[str, list[dict[str, Any]]]:
    """Return the results by case, one entry per rank; a case that raised has only ``error``.

    Raises:
        CheckFailed: a rank left no result.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {
            "device": device,
            "backend": backend,
            "cases": {k: asdict(case) for k, case in cases.items()},
        }
        (folder / "cases.json").write_text(json.dumps(job))
        by_rank = _run(folder, ranks, limit_s)
    return {case: [results[case] for results in by_rank] for case in cases}


def _run(folder: Path, ranks: int, limit_s: float) -> list[dict[str, Any]]:
    port = free_port()
    processes = [_start(rank, ranks, port, folder) for rank in range(ranks)]
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"ranks took longer than {limit_s:.0f} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    results = []
    for rank, output in enumerate(outputs):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            lines = output.strip().splitlines()
            raise CheckFailed(f"rank {rank} has left no result: {one_line(lines[-1] if lines else '')}")
        results.append(json.loads(path.read_text()))
    return results


def _start(rank: int, ranks: int, port: int, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    command = [sys.executable, "-m", "benchmarks.device.engine_rank"]
    command += [str(folder / "cases.json"), str(folder / f"rank{rank}.json")]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


STAGE_DTYPES = ("float32", "bfloat16", "float16")


def list_stage_cases() -> dict[str, Case]:
    """Return every stage in every dtype; float16 scales its loss, float32 clips."""
    made = {}
    for stage in range(4):
        for dtype in STAGE_DTYPES:
            zero: dict[str, Any] = {"stage": stage, "dtype": dtype}
            if dtype == "float16":
                zero["loss_scale"] = {"initial": 1024.0}
            made[f"stage {stage} {dtype}"] = Case(zero=zero)
        made[f"stage {stage} clip"] = Case(zero={"stage": stage, "clip_norm": 0.5})
        made[f"stage {stage} MD"] = Case(zero={"stage": stage, "defragment": True})
        made[f"stage {stage} stream"] = Case(zero={"stage": stage}, stream=True)
    return made


def measure_engine_stages() -> dict[str, Any]:
    """Return one entry per case.

    Raises:
        CheckFailed: losses differ from those of a training without the engine, or a case raised.
    """
    return judge_cases(list_stage_cases(), run_cases(list_stage_cases()))


def judge_cases(cases: dict[str, Case], seen: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return summaries of all cases.

    Raises:
        CheckFailed: a case is wrong.
    """
    figures = {name: summarize_case(ranks) for name, ranks in seen.items()}
    wrong = [
        line
        for name, ranks in seen.items()
        for line in find_case_faults(name, ranks, cases[name].zero.get("dtype", "float32"))
    ]
    if wrong:
        raise CheckFailed("; ".join(wrong), figures)
    return figures


def list_zero_r_cases() -> dict[str, Case]:
    """Return each switch along with the case without it."""
    return {
        "no checkpoints": _make_zero_r_case(),
        "checkpoints": _make_zero_r_case(checkpoint=True),
        "Pa": _make_zero_r_case(checkpoint=True, partition=True),
        "Pa+cpu": _make_zero_r_case(checkpoint=True, partition=True, host=True),
        "checkpoints MD": _make_zero_r_case(checkpoint=True, contiguous=True),
        "stage 3 CB": Case(zero={"stage": 3, "constant_buffers": 2**16}, layers=6, hidden=512),
    }


def _make_zero_r_case(**activations: bool) -> Case:
    return Case(mp=2, activations=dict(activations), layers=6, hidden=512)


def measure_zero_r() -> dict[str, Any]:
    """Return one entry per case; see :mod:`benchmarks.device.engine`."""
    return judge_cases(list_zero_r_cases(), run_cases(list_zero_r_cases(), limit_s=60))


#: Relative.  float32 differs in the order of sums; with 16 bits a loss is known to the third digit.
TOLERANCE = {"float32": 2e-4, "bfloat16": 2e-2, "float16": 2e-2}


def find_case_faults(name: str, ranks: Sequence[dict[str, Any]], dtype: str) -> list[str]:
    """Return what is wrong with a case, one line each."""
    errors = [f"{name}: rank {rank}: {seen['error']}" for rank, seen in enumerate(ranks) if "error" in seen]
    if errors:
        return errors
    lines = []
    for rank, seen in enumerate(ranks):
        pairs = zip(seen["losses"], seen["reference"], strict=True)
        # all(), not max(): nan is neither larger nor smaller
        if not all(abs(mine - truth) <= TOLERANCE[dtype] * abs(truth) for mine, truth in pairs):
            lines.append(f"{name}: rank {rank}: losses are {seen['losses']}, not {seen['reference']}")
    return lines


def summarize_case(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a case, from the rank that needs the most."""
    if any("error" in seen for seen in ranks):
        return {"error": [seen.get("error") for seen in ranks]}
    kept = {"losses": ranks[0]["losses"], "reference": ranks[0]["reference"], "kept_bytes": ranks[0]["kept"]}
    for name in ("peak_bytes", "reserved_bytes", "segments", "retries"):
        if name in ranks[0]:
            kept[name] = max(seen[name] for seen in ranks)
    return kept
