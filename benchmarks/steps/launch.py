"""Define the engine benchmark's plan (sizes and pairs), and start the processes of its ranks."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FLOAT32, BFLOAT16 = "float32", "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of one benchmark; ``batch`` is global.

    A round visits every contender once in a random order, and once more in the reverse order, so that drift
    within a round affects all alike.  A visit is ``warm_up`` steps that do not count and ``steps`` that do.
    """

    ranks: int = 2
    layers: int = 4
    hidden: int = 256
    heads: int = 4
    vocabulary: int = 1024
    context: int = 64
    batch: int = 8
    dtype: str = FLOAT32
    rounds: int = 12
    warm_up: int = 1
    steps: int = 2
    memory_steps: int = 8
    """Each has a peak, and their median counts: gloo's threads free a little earlier or later each time."""
    traffic_steps: int = 2
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in (FLOAT32, BFLOAT16):
            raise ValueError(f"dtype is {self.dtype}; it must be {FLOAT32} or {BFLOAT16}")
        for name in ("ranks", "rounds", "steps", "memory_steps", "traffic_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return asdict(self)


QUICK = {
    "layers": 2, "hidden": 32, "vocabulary": 64, "context": 16, "batch": 4, "rounds": 1, "warm_up": 0,
    "steps": 1, "memory_steps": 2, "traffic_steps": 1,
}  # fmt: skip
"""Sizes of a smoke test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A comparison of the engine, called ``subject``, with ``peer``."""

    subject: str
    peer: str
    equal_overlap: bool
    """Whether both overlap their collectives with compute in the same way."""


_FSDP2 = (
    Pair(subject="zero2 plain", peer="fsdp2 keep", equal_overlap=True),
    Pair(subject="zero2", peer="fsdp2 keep", equal_overlap=False),
    Pair(subject="zero3 plain", peer="fsdp2", equal_overlap=True),
    Pair(subject="zero3", peer="fsdp2", equal_overlap=False),
    Pair(subject="zero3 keep plain", peer="fsdp2 keep", equal_overlap=True),
    Pair(subject="zero3 keep", peer="fsdp2 keep", equal_overlap=False),
)
_DDP = (
    Pair(subject="zero0", peer="ddp", equal_overlap=True),
    Pair(subject="zero1 plain", peer="ddp + zro", equal_overlap=False),
    Pair(subject="zero1", peer="ddp + zro", equal_overlap=False),
)


def list_pairs(dtype: str) -> tuple[Pair, ...]:
    """Return the pairs of a dtype; DDP is left out with 16 bits, as it has no fp32 master weights."""
    return (*_DDP, *_FSDP2) if dtype == FLOAT32 else _FSDP2


def list_contenders(pairs: tuple[Pair, ...]) -> list[str]:
    """Return all names, each once, in the order of the pairs."""
    return list(dict.fromkeys(name for pair in pairs for name in (pair.peer, pair.subject)))


ROOT = Path(__file__).parents[2]


class RanksFailed(Exception):
    """A rank ended without a result; the message says how."""


def run_pass(
    measure: str, plan: Plan, folder: Path, *, timeout_s: float, preload: Path | None = None
) -> list[dict[str, Any]]:
    """Return the result of every rank; ranks are killed after ``timeout_s``.

    Raises:
        RanksFailed: a rank left no result; all output is in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan.as_dict()))
    port = free_port()
    ranks = [_start(measure, rank, plan, folder, port, preload) for rank in range(plan.ranks)]
    try:
        for process in ranks:
            process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise RanksFailed(f"the {measure} pass took longer than {timeout_s:g} s") from None
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    return [_result(measure, rank, folder, process.returncode) for rank, process in enumerate(ranks)]


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    measure: str, rank: int, plan: Plan, folder: Path, port: int, preload: Path | None
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    module, plan_path = "benchmarks.steps.rank", folder / "plan.json"
    command = [
        sys.executable,
        "-m",
        module,
        measure,
        str(plan_path),
        str(_result_path(measure, rank, folder)),
    ]
    with _log_path(measure, rank, folder).open("wb") as log:
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)


def _result(measure: str, rank: int, folder: Path, code: int) -> dict[str, Any]:
    path = _result_path(measure, rank, folder)
    if path.exists():
        return json.loads(path.read_text())
    lines = _log_path(measure, rank, folder).read_text(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "no output"
    raise RanksFailed(f"rank {rank} of the {measure} pass ended with code {code}: {last}")


def _result_path(measure: str, rank: int, folder: Path) -> Path:
    return folder / f"{measure}.rank{rank}.json"


def _log_path(measure: str, rank: int, folder: Path) -> Path:
    return folder / f"{measure}.rank{rank}.log"
