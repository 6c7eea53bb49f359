"""The form of simulated traces: as real profilers write them, and the same every time."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_traces import TRACES
from zprof.simulator.plan import Compute, Plan, Recording, Stamps, Vendor, Window
from zprof.simulator.simulate import simulate

TINY = Plan(ranks=2, units=2, steps=2, compute=Compute(forward_kernels=2, backward_kernels=3))
ROOT = Path(__file__).parents[3]
#: Real traces of each vendor.
REAL = {
    Vendor.NVIDIA: (
        "hta_nccl_data.json.gz", "tracelens_b200_eager.json.gz", "tracelens_h100_qwen_0.5b.json.gz",
    ),
    Vendor.AMD: ("tracelens_mi300_bert_small.json.gz", "hta_mi250_minitoy.json.gz"),
    Vendor.GLOO: ("hta_cpu_only_gloo_rank-34.pt.trace.json.gz",),
}  # fmt: skip
#: What newer PyTorch or a multi-rank RCCL job adds to what those files happen to hold.
NEWER = {"Seq", "Rank", "Global rank start", "Global rank stride", "Input type", "Input Dims"}
COLLECTIVE = {
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size",
    "Out split size", "Process Group Name", "Process Group Description", "Process Group Ranks",
}  # fmt: skip


def document(folder: Path, rank: int = 0) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    return loaded


def digest(folder: Path) -> str:
    names = sorted(folder.iterdir())
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in names)).hexdigest()


@pytest.mark.parametrize("vendor", Vendor)
def test_the_same_plan_gives_the_same_bytes_whatever_the_hash_seed(vendor: Vendor, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from zprof.simulator.plan import *; "
        "from zprof.simulator.simulate import simulate; "
        f"plan = Plan(ranks=2, units=2, seed=5, drop_probability=0.05, vendor=Vendor.{vendor.name}); "
        "simulate(plan, Path(sys.argv[1]))"
    )
    found = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=environment)
        found.append(digest(folder))
    simulate(Plan(ranks=2, units=2, seed=6, vendor=vendor), tmp_path / "other")
    assert found[0] == found[1] != digest(tmp_path / "other")


@pytest.mark.parametrize("vendor", Vendor)
def test_layouts_and_packing_hold_the_same_events(vendor: Vendor, tmp_path: Path) -> None:
    plan = replace(TINY, vendor=vendor)
    simulate(plan, tmp_path / "loose")
    simulate(replace(plan, recording=Recording(indented=False, compress=False)), tmp_path / "tight")
    loose, tight = document(tmp_path / "loose"), (tmp_path / "tight/rank0.json").read_text()
    assert json.loads(tight) == loose
    assert "\n" not in tight
    assert '": ' not in tight


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
            assert keys - real[category] <= NEWER | COLLECTIVE, category
    common = {"kernel": {"External id", "device", "stream", "correlation", "grid", "block"}}
    for category, keys in common.items() if vendor is not Vendor.GLOO else ():
        assert keys <= real[category]
        assert keys <= keys_by_category(made["traceEvents"])[category]


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.AMD])
def test_each_work_of_a_device_has_its_call_and_its_arrow(vendor: Vendor, tmp_path: Path) -> None:
    simulate(replace(TINY, vendor=vendor), tmp_path)
    found = document(tmp_path)["traceEvents"]
    prefix = "cuda" if vendor is Vendor.NVIDIA else "hip"
    calls = {e["args"]["correlation"]: e for e in found if e.get("cat") == "cuda_runtime"}
    arrows = {(e["ph"], e["id"]): e["ts"] for e in found if e.get("cat") == "ac2g"}
    work = [e for e in found if e.get("cat") in ("kernel", "gpu_memcpy")]
    assert len(work) > 40
    for event in work:
        number = event["args"]["correlation"]
        call = calls[number]
        assert call["name"].startswith(prefix)
        assert call["ts"] < event["ts"]
        assert arrows["s", number] == call["ts"]
        assert arrows["f", number] == event["ts"]
        assert event["tid"] == event["args"]["stream"]


def test_nccl_says_what_it_is_and_rccl_only_in_its_metadata(tmp_path: Path) -> None:
    names = {}
    for vendor in (Vendor.NVIDIA, Vendor.AMD):
        folder = tmp_path / vendor
        simulate(replace(TINY, vendor=vendor), folder)
        kernels = [e for e in document(folder)["traceEvents"] if e.get("cat") == "kernel"]
        running = [e for e in kernels if "Collective name" in e["args"]]
        names[vendor] = {e["name"].split("(")[0] for e in running}
        first = next(e for e in running if e["args"]["Collective name"] == "_allgather_base")["args"]
        assert first["Out msg nelems"] == 2 * first["In msg nelems"] == 16 * 1024 * 1024
        assert first["Process Group Ranks"] == "[0, 1]"
        assert first["dtype"] == "BFloat16"
        assert [e["args"]["Seq"] for e in running] == list(range(len(running)))
    assert names[Vendor.NVIDIA] == {
        "ncclDevKernel_AllGather_RING_LL",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    }
    assert names[Vendor.AMD] == {"ncclDevKernel_Generic"}


def test_gloo_runs_a_reduce_scatter_as_an_all_reduce_on_a_worker(tmp_path: Path) -> None:
    simulate(replace(TINY, vendor=Vendor.GLOO), tmp_path)
    found = document(tmp_path)["traceEvents"]
    names = [e["name"] for e in found if e["ph"] == "X"]
    assert names.count("c10d::_reduce_scatter_base_") == 4
    assert "gloo:reduce_scatter" not in names
    assert names.count("gloo:all_reduce") == 4 + names.count("c10d::allreduce_")
    main = next(e["tid"] for e in found if e["name"] == "ProfilerStep#3")
    workers = {e["tid"] for e in found if e["name"].startswith("gloo:")}
    named = {e["tid"] for e in found if e["ph"] == "M" and "pt_gloo_runloop" in str(e["args"])}
    assert main not in workers
    assert workers == named
    assert not any("record_param_comms" in name for name in names)


def test_waits_of_gloo_may_be_unseen(tmp_path: Path) -> None:
    plan = replace(TINY, vendor=Vendor.GLOO)
    for seen in (True, False):
        simulate(replace(plan, recording=Recording(wait_ranges=seen)), tmp_path)
        names = [e["name"] for e in document(tmp_path)["traceEvents"]]
        assert ("zprof::wait" in names) is seen


def test_without_metadata_the_kernels_have_their_old_names(tmp_path: Path) -> None:
    simulate(replace(TINY, recording=Recording(metadata=False)), tmp_path)
    found = document(tmp_path)["traceEvents"]
    running = [e for e in found if e.get("cat") == "kernel" and "nccl" in e["name"]]
    assert running
    assert all(e["name"].startswith("ncclKernel_") for e in running)
    assert not any(COLLECTIVE & set(e["args"]) for e in running)
    assert not any(e["name"] == "record_param_comms" for e in found)


def test_old_stamps_are_whole_microseconds_without_a_base(tmp_path: Path) -> None:
    simulate(TINY, tmp_path / "new")
    simulate(replace(TINY, recording=Recording(stamps=Stamps.WHOLE_MICROSECONDS)), tmp_path / "old")
    new, old = document(tmp_path / "new"), document(tmp_path / "old")
    assert "baseTimeNanoseconds" not in old
    base = new["baseTimeNanoseconds"] // 1000
    for first, second in zip(new["traceEvents"], old["traceEvents"], strict=True):
        assert isinstance(second["ts"], int)
        assert abs(base + first["ts"] - second["ts"]) <= 1


def first_step(folder: Path, rank: int) -> int:
    made = document(folder, rank)
    steps = [e for e in made["traceEvents"] if e["name"] == "ProfilerStep#3"]
    event = next(e for e in steps if e["cat"] == "user_annotation")
    return int(made["baseTimeNanoseconds"]) + round(event["ts"] * 1000)


def test_clocks_differ_by_offset_and_drift(tmp_path: Path) -> None:
    plan = replace(TINY, steps=3)
    moved = replace(plan, offsets_ns={1: 5_000_000}, drift_ppb={1: 2_000_000})
    simulate(plan, tmp_path / "same")
    truth = simulate(moved, tmp_path / "moved")
    assert first_step(tmp_path / "moved", 0) == first_step(tmp_path / "same", 0)
    assert first_step(tmp_path / "moved", 1) - first_step(tmp_path / "same", 1) == 5_000_000
    ends = []
    for name in ("same", "moved"):
        made = document(tmp_path / name, 1)["traceEvents"]
        ends.append(max(e["ts"] for e in made if e.get("cat") == "kernel"))
    elapsed = max(step.end_ns for step in truth.per_step) - truth.origin_ns
    assert ends[1] - ends[0] == pytest.approx((5_000_000 + elapsed * 0.002) / 1000, rel=0.01)


def test_a_window_that_opens_late_clips_its_step_and_lacks_what_began_before(tmp_path: Path) -> None:
    plan = replace(TINY, windows={1: Window(opens_late_ns=2_000_000, closes_early_ns=3_000_000)})
    truth = simulate(plan, tmp_path)
    made = document(tmp_path, 1)
    base, rank = made["baseTimeNanoseconds"], truth.per_rank[1]
    for event in made["traceEvents"]:
        if event["ph"] == "X" and event["cat"] != "Trace":
            begin = base + round(event["ts"] * 1000)
            assert begin >= rank.opens_ns
            assert begin + round(event["dur"] * 1000) <= rank.closes_ns
    assert first_step(tmp_path, 1) == rank.opens_ns
    assert rank.events < truth.per_rank[0].events


def test_drops_take_the_device_event_and_leave_the_call(tmp_path: Path) -> None:
    simulate(replace(TINY, drops=((0, 2),)), tmp_path)
    found = document(tmp_path)["traceEvents"]
    seen = [e["args"]["Seq"] for e in found if e.get("cat") == "kernel" and "Seq" in e["args"]]
    called = [e["args"]["Seq"] for e in found if e["name"] == "record_param_comms"]
    assert set(called) - set(seen) == {2}
    truth = simulate(replace(TINY, drop_probability=0.1), tmp_path / "many")
    assert truth.per_rank[0].dropped > 10


def test_a_rank_that_is_missing_has_no_file(tmp_path: Path) -> None:
    simulate(replace(TINY, ranks=12, missing=(3,)), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"rank{rank:02d}.json.gz" for rank in range(12) if rank != 3} | {"truth.json"}


def test_padding_reaches_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    for vendor in Vendor:
        simulate(replace(TINY, vendor=vendor, recording=Recording(pad_to_bytes=1_000_000)), tmp_path)
        packed = (tmp_path / "rank1.json.gz").read_bytes()
        text = gzip.decompress(packed)
        assert len(text) == pytest.approx(1_000_000, rel=0.03)
        assert len(packed) < len(text) / 5
        json.loads(text)


META = """
      "Collective name": "_allgather_base",
      "In msg nelems": 8388608,
      "Out msg nelems": 16777216,
      "Group size": 2,
      "dtype": "BFloat16",
      "In split size": "[]",
      "Out split size": "[]",
      "Process Group Name": "0",
      "Process Group Description": "default_pg",
      "Process Group Ranks": "[0, 1]",
      "Seq": 0
    }
  },
"""
#: The first collective of rank 0, as text.
GOLDEN = {
    Vendor.NVIDIA: """  {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",\
 "pid": 0, "tid": 20,
    "ts": 1428624000274.000, "dur": 188.282,
    "args": {
      "External id": 1033,
      "queued": 0, "device": 0, "context": 1,
      "stream": 20, "correlation": 1033,
      "registers per thread": 96,
      "shared memory": 0,
      "blocks per SM": 0.121212,
      "warps per SM": 1.939394,
      "grid": [16, 1, 1],
      "block": [512, 1, 1],
      "est. achieved occupancy %": 3,"""
    + META
    + """  {
    "ph": "f", "id": 1033, "pid": 0, "tid": 20, "ts": 1428624000274.000,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  },
""",
    Vendor.AMD: """  {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",\
 "pid": 2, "tid": 3,
    "ts": 1428624000274.000, "dur": 188.282,
    "args": {
      "External id": 1033,
      "device": 2, "stream": 3,
      "correlation": 1033, "kind": "Dispatch Kernel",
      "grid": [16, 1, 1],
      "block": [512, 1, 1],"""
    + META,
    Vendor.GLOO: """  {
    "ph": "X", "cat": "cpu_op", "name": "c10d::_allgather_base_", "pid": 20000, "tid": 20000,
    "ts": 1428624000252.000, "dur": 24.000,
    "args": {
      "External id": 1031,
      "Record function id": 0,
      "Concrete Inputs": ["", "", "", "True", "-1"],
      "Input type": ["c10::BFloat16", "c10::BFloat16", "", "Scalar", "Scalar"],
      "Input Dims": [[16777216], [8388608], [], [], []],
      "Ev Idx": 1031
    }
  },
  {
    "ph": "X", "cat": "user_annotation", "name": "gloo:all_gather", "pid": 20000, "tid": 20011,
    "ts": 1428624000312.000, "dur": 188.282,
    "args": {
      "External id": 1032,
      "Record function id": 0,
      "Concrete Inputs": [""],
      "Input type": ["c10::BFloat16"],
      "Input Dims": [[8388608]],
      "Ev Idx": 1032
    }
  },
""",
}


@pytest.mark.parametrize("vendor", Vendor)
def test_the_text_of_a_collective_is_laid_out_as_libkineto_does(vendor: Vendor, tmp_path: Path) -> None:
    simulate(replace(TINY, vendor=vendor), tmp_path)
    text = gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()).decode()
    assert text.startswith('{\n  "schemaVersion": 1,\n  "deviceProperties": [')
    assert GOLDEN[vendor] in text
    assert text.endswith('"displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1751410836000000000\n}')
