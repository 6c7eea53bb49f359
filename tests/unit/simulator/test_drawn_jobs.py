"""Hold the truth of drawn jobs to its own counterfactuals, and their files to CUPTI's rules."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from zprof.simulator.faults import draw_candidate, remove
from zprof.simulator.ground_truth import draw_job, gain_ns, write_job
from zprof.simulator.job import CAUSES, Job


def read_traces(folder: Path) -> list[dict[str, Any]]:
    return [read_trace(path) for path in sorted(folder.glob("rank*.json*"))]


def read_trace(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def find_job(cause: str | None, shape: str = "training", **wanted: object) -> Job:
    """Return the first small job whose dialect is as wanted."""
    for seed in range(200):
        job = draw_candidate(seed, cause, shape, 0)
        small = job.world * job.steps * job.count_kernels() < 4_000
        if small and all(getattr(job.dialect, key) == value for key, value in wanted.items()):
            return job
    raise AssertionError("no such job among 200")


#: One of a rank and one of the engine's settings; the others are as slow as these.
QUICK_CAUSES = ("data_loader", "no_prefetch")


@pytest.mark.parametrize(
    "cause",
    [pytest.param(cause, marks=[] if cause in QUICK_CAUSES else pytest.mark.slow) for cause in CAUSES],
)
def test_removing_a_planted_cause_wins_time(cause: str) -> None:
    job = draw_job(1, cause)
    assert job.faults == (cause,)
    assert gain_ns(job, cause) > 0
    fixed = remove(job, cause)
    assert remove(fixed, cause) == fixed
    assert gain_ns(fixed, cause) == 0


def test_kernels_are_linked_to_their_launches_and_host_rows_nest(tmp_path: Path) -> None:
    write_job(find_job(None, era="new"), tmp_path)
    for trace in read_traces(tmp_path):
        events = trace["traceEvents"]
        launches = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
        work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
        for event in work:
            launch = launches[event["args"]["correlation"]]
            assert launch["ts"] < event["ts"]
            assert launch["args"]["External id"] == event["args"]["External id"]
        flows = Counter((e["id"], e["ph"]) for e in events if e.get("cat") == "ac2g")
        assert flows == Counter((e["args"]["correlation"], ph) for e in work for ph in "sf")
        rows = defaultdict(list)
        for event in events:
            if event.get("cat") in ("cpu_op", "user_annotation", "python_function", "cuda_runtime"):
                rows[event["tid"]].append((event["ts"], -event["dur"]))
        for thread in rows.values():
            open_ends: list[float] = []
            for start, negative in sorted(thread):
                while open_ends and open_ends[-1] <= start + 0.002:
                    open_ends.pop()
                assert not open_ends or start - negative <= open_ends[-1] + 0.002
                open_ends.append(start - negative)


def test_metadata_of_collectives_agrees_between_ranks(tmp_path: Path) -> None:
    write_job(find_job("fp32_reduce", era="new", metadata=True, sequence=True), tmp_path)
    facts, members = defaultdict(set), Counter[tuple[Any, ...]]()
    for trace in read_traces(tmp_path):
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                args = event["args"]
                place = tuple(args[k] for k in ("Process Group Name", "Seq", "Process Group Ranks"))
                said = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype")
                facts[place].add(tuple(args[k] for k in said))
                members[place] += 1
    assert facts
    assert all(len(each) == 1 for each in facts.values())
    assert all(members[place] == len(json.loads(place[2])) for place in facts)
    reduced = {f[4] for each in facts.values() for f in each if f[0] in ("_reduce_scatter_base", "allreduce")}
    assert reduced == {"Float"}
