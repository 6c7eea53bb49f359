"""Each engine of torch with its options, recorded on real ranks: its states and volume are the formula's."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.forked_ranks import free_port
from zprof.diagnosis.diagnose import diagnose
from zprof.model.memory import NOT_EXPLAINED
from zprof.model.tenants import Tenant
from zprof.run.reader import load

PROGRAM = Path(__file__).with_name("engine_variants.py")
ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 240
#: Three blocks of 128 x 77 and 77 x 128 weights with biases, and a layer of 128 x 128.
ROOT_UNIT = 128 * 128 + 128
ELEMENTS = 3 * (2 * 128 * 77 + 77 + 128) + ROOT_UNIT


@dataclass(frozen=True, kw_only=True)
class Expected:
    """``once_bytes``: bytes per element of the root unit, which is not gathered again for its backward."""

    engine: str
    stage: int
    ranks: int = 2
    replicas: int | None = None
    once_bytes: int = 4
    has_volume: bool = True


VARIANTS = {
    "ddp": Expected(engine="ddp", stage=0, once_bytes=0),
    "zero1": Expected(engine="ddp", stage=1, once_bytes=0),
    "fsdp1_full": Expected(engine="fsdp1", stage=3),
    "fsdp1_full_orig": Expected(engine="fsdp1", stage=3),
    "fsdp1_grad": Expected(engine="fsdp1", stage=2, once_bytes=0),
    "fsdp1_none": Expected(engine="fsdp1", stage=0, once_bytes=0),
    "fsdp1_hybrid": Expected(engine="fsdp1", stage=3, replicas=2),
    "fsdp1_hybrid_orig": Expected(engine="fsdp1", stage=3, replicas=2),
    "fsdp1_hybrid_zero2": Expected(engine="fsdp1", stage=2, replicas=2, once_bytes=0),
    "fsdp1_mixed": Expected(engine="fsdp1", stage=3, once_bytes=2),
    "fsdp2": Expected(engine="fsdp2", stage=3),
    "fsdp2_kept": Expected(engine="fsdp2", stage=2, once_bytes=0),
    "fsdp2_int": Expected(engine="fsdp2", stage=3, ranks=4, has_volume=False),
    "fsdp2_hybrid": Expected(engine="fsdp2", stage=3, replicas=2),
    "fsdp2_mixed": Expected(engine="fsdp2", stage=3, once_bytes=2),
    "fsdp2_offload": Expected(engine="fsdp2", stage=3),
}


@pytest.mark.ranks
@pytest.mark.slow  # one of them is in the bed's fast cells
@pytest.mark.parametrize("name", VARIANTS)
def test_states_and_volume_are_those_of_the_formula(name: str, tmp_path: Path) -> None:
    expected = VARIANTS[name]
    run = load(record(name, expected.ranks * (expected.replicas or 1), tmp_path))
    facts, report = run.manifest.training, diagnose(run)
    assert (facts.engine, facts.stage, facts.parameters) == (expected.engine, expected.stage, ELEMENTS)
    assert (facts.shard_ranks, facts.replica_ranks) == (expected.ranks, expected.replicas)
    assert len(report.memory.formulas) == 3 * run.manifest.world_size
    assert NOT_EXPLAINED not in {check.cause for check in report.memory.formulas}
    for tenant in (Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE, Tenant.PARAMETERS):
        rests = [check.unexplained_bytes for check in report.memory.formulas if check.tenant is tenant]
        if tenant is Tenant.PARAMETERS and expected.stage == 2:  # FSDP shards them between steps, too
            assert all(rest < 0 for rest in rests)
        else:
            assert abs(sum(rests)) < len(rests)
    if not expected.has_volume:
        assert report.volume is None
        return
    assert report.volume is not None
    seen, formula = report.volume.seen_bytes, report.volume.expected_bytes
    if name == "zero1":  # DDP all-reduces what ZeRO reduce-scatters
        assert seen == report.volume.engine_bytes == formula * 3 // 2
    else:
        assert seen == formula - expected.once_bytes * ROOT_UNIT


def record(name: str, ranks: int, folder: Path) -> Path:
    run = folder / "run.zprof"
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    options = ["--time-steps", "4", "-o", str(run)]
    command = [sys.executable, "-m", "zprof", "record", *options, "--", sys.executable, *launch]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [*command, str(PROGRAM), name],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return run
