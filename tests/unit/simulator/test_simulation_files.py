"""The form of simulated traces: as real profilers write them, and the same every time."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.real_traces import TRACES
from zprof.simulator.plan import ComputeCost, Recording, SimulationPlan, Vendor
from zprof.simulator.simulate import simulate

TINY = SimulationPlan(ranks=2, units=2, steps=2, compute=ComputeCost(forward_kernels=2, backward_kernels=3))
#: Real traces of each vendor.
REAL = {
    Vendor.NVIDIA: (
        "hta_nccl_data.json.gz", "tracelens_b200_eager.json.gz", "tracelens_h100_qwen_0.5b.json.gz",
    ),
    Vendor.AMD: ("tracelens_mi300_bert_small.json.gz", "hta_mi250_minitoy.json.gz"),
    Vendor.GLOO: ("hta_cpu_only_gloo_rank-34.pt.trace.json.gz",),
}  # fmt: skip
COLLECTIVE = {
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size",
    "Out split size", "Process Group Name", "Process Group Description", "Process Group Ranks",
}  # fmt: skip
#: What newer PyTorch or a multi-rank RCCL job adds to what those files happen to hold.
NEWER = COLLECTIVE | {"Seq", "Rank", "Global rank start", "Global rank stride", "Input type", "Input Dims"}


def document(folder: Path, rank: int = 0) -> dict[str, Any]:
    return json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))


def digest(folder: Path) -> str:
    names = sorted(folder.iterdir())
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in names)).hexdigest()


def test_the_same_plan_gives_the_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from zprof.simulator.plan import *; "
        "from zprof.simulator.simulate import simulate; "
        "[simulate(SimulationPlan(ranks=2, units=2, seed=5, drop_probability=0.05, vendor=vendor), "
        "Path(sys.argv[1], vendor.name)) for vendor in Vendor]"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], check=True, env=environment)
    for vendor in Vendor:
        simulate(SimulationPlan(ranks=2, units=2, seed=6, vendor=vendor), tmp_path / "other" / vendor.name)
        one, two, other = (digest(tmp_path / seed / vendor.name) for seed in ("1", "2", "other"))
        assert one == two != other


def keys_by_category(events: list[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            found[event["cat"]] |= set(event.get("args", {}))
    return found


@pytest.mark.parametrize("vendor", Vendor)
def test_arguments_are_those_of_real_traces(vendor: Vendor, tmp_path: Path) -> None:
    files = [TRACES / name for name in REAL[vendor]]
    if not all(path.is_file() for path in files):
        pytest.skip("the real traces are not here")
    simulate(replace(TINY, vendor=vendor), tmp_path)
    real: dict[str, set[str]] = defaultdict(set)
    top: set[str] = set()
    for path in files:
        loaded = json.loads(gzip.decompress(path.read_bytes()))
        top |= set(loaded)
        for category, keys in keys_by_category(loaded["traceEvents"]).items():
            real[category] |= keys
    made = document(tmp_path)
    assert set(made) - top <= {"host_name", "distributedInfo", "trace_id", "record_shapes"}
    for category, keys in keys_by_category(made["traceEvents"]).items():
        if category in real:
            assert keys - real[category] <= NEWER, category
        if category == "kernel":
            assert {"External id", "device", "stream", "correlation", "grid", "block"} <= keys & real[
                category
            ]


def test_gloo_runs_a_reduce_scatter_as_an_all_reduce_on_a_worker(tmp_path: Path) -> None:
    simulate(replace(TINY, vendor=Vendor.GLOO), tmp_path)
    found = document(tmp_path)["traceEvents"]
    names = [e["name"] for e in found if e["ph"] == "X"]
    assert names.count("c10d::_reduce_scatter_base_") == 4
    assert names.count("gloo:all_reduce") == 4 + names.count("c10d::allreduce_")
    assert "gloo:reduce_scatter" not in names
    assert "zprof::wait" in names
    main = next(e["tid"] for e in found if e["name"] == "ProfilerStep#3")
    assert main not in {e["tid"] for e in found if e["name"].startswith("gloo:")}
    simulate(replace(TINY, vendor=Vendor.GLOO, recording=Recording(wait_ranges=False)), tmp_path)
    assert "zprof::wait" not in {e["name"] for e in document(tmp_path)["traceEvents"]}
