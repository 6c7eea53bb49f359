"""One program under each launcher: every rank is recorded, and it prints and ends as it does alone."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.forked_ranks import free_port
from zprof.model.gaps import GapKind
from zprof.run.reader import load

pytestmark = pytest.mark.ranks
slow = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PROGRAM = str(Path(__file__).with_name("programs") / "launched.py")
TIME_LIMIT_S = 180
RANKS = 2
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def start_itself(how: str) -> list[str]:
    return [sys.executable, PROGRAM, how, str(free_port())]


def torchrun(argument: str = "env") -> list[str]:
    return [*TORCHRUN, f"--nproc-per-node={RANKS}", f"--master-port={free_port()}", PROGRAM, argument]


def two_agents() -> list[str]:
    """Two nodes of one rank each, on this machine."""
    node = [*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    node += [f"--master-port={free_port()}"]
    agents = [shlex.join([*node, f"--node-rank={rank}", PROGRAM, "env"]) for rank in range(RANKS)]
    return ["bash", "-c", f"{agents[0]} & first=$!; {agents[1]} && wait $first"]


def accelerate() -> list[str]:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines=1"]
    launch += [f"--num_processes={RANKS}", "--mixed_precision=no", "--dynamo_backend=no"]
    return [*launch, f"--main_process_port={free_port()}", PROGRAM, "env"]


def deepspeed() -> list[str]:
    launch = [sys.executable, "-m", "deepspeed.launcher.runner", f"--num_accelerators={RANKS}"]
    return [*launch, f"--master_port={free_port()}", PROGRAM, "env"]


#: Command, the package that it needs, and if its ranks are forks.
LAUNCHERS: dict[str, tuple[Callable[[], list[str]], str, bool]] = {
    "torchrun": (torchrun, "torch", False),
    "torchrun, a rank fails": (lambda: torchrun("fails"), "torch", False),
    "two agents": (two_agents, "torch", False),
    "spawn": (lambda: start_itself("spawn"), "torch", False),
    "fork": (lambda: start_itself("fork"), "torch", True),
    "notebook_launcher": (lambda: start_itself("notebook"), "accelerate", True),
    "accelerate launch": (accelerate, "accelerate", False),
    "deepspeed": (deepspeed, "deepspeed", False),
}
FAST = "fork"


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
        "ACCELERATE_USE_CPU": "1",
        "DS_ACCELERATOR": "cpu",
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, timeout=TIME_LIMIT_S, check=False
    )


def list_losses(output: bytes) -> list[str]:
    """Launchers log to stdout, too: the program prints one number."""
    lines = output.decode().splitlines()
    return [line for line in lines if line.replace(".", "", 1).isdigit()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == FAST else slow) for name in LAUNCHERS]
)
def test_every_rank_is_recorded(name: str, tmp_path: Path) -> None:
    make_command, package, are_forks = LAUNCHERS[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    plain = run(make_command(), tmp_path)
    record = [sys.executable, "-m", "zprof", "record", "-o", "run.zprof", "--"]
    recorded = run([*record, *make_command()], tmp_path)
    assert len(list_losses(plain.stdout)) == 1, plain.stderr.decode()[-2000:]
    assert list_losses(recorded.stdout) == list_losses(plain.stdout), recorded.stderr.decode()[-2000:]
    assert recorded.returncode == plain.returncode
    assert (plain.returncode != 0) is ("fails" in name)

    notes = [line for line in recorded.stderr.decode().splitlines() if line.startswith("zprof:")]
    assert len(notes) == 1, notes
    found = load(tmp_path / "run.zprof")
    assert found.manifest.world_size == RANKS
    assert list(found.ranks) == list(range(RANKS))
    assert found.manifest.training.engine == "ddp"
    for rank, manifest in found.rank_manifests.items():
        assert (manifest.rank, manifest.status) == (rank, "complete")
        assert manifest.run_id == found.manifest.run_id
        assert manifest.memory_steps == (2, 3)
        assert manifest.time_steps == tuple(range(4, 12))
        assert found.has_table(rank, "alloc")
        assert found.has_table(rank, "collectives")
        # Of a fork, only what precedes its first step is unknown.
        assert found.has_table(rank, "init_alloc") is not are_forks
        gaps = [gap for gap in manifest.gaps if gap.kind is GapKind.MEMORY_PART]
        assert len(gaps) == are_forks
