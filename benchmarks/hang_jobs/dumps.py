"""Write the flight-recorder dumps of a simulated job, as the versions of torch do."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

from benchmarks.hang_jobs.engine import Entry
from benchmarks.hang_jobs.job import Job, count_earlier, list_kept
from benchmarks.hang_jobs.mesh import Group
from benchmarks.hang_jobs.program import Op

#: The time at which a job starts.
EPOCH_NS = 1_758_581_000_000_000_000
TIMEOUT_MS = 600_000
LINES = {"all_reduce": 2810, "broadcast": 2712, "all_to_all": 4200, "send": 2300, "recv": 2350}


def write_dumps(job: Job, folder: Path) -> list[Path]:
    """Write one file per rank that left a dump; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = count_earlier(job.outcome, job.dialect)
    style = job.dialect.name_style + (".json" if job.dialect.is_json else "")
    paths = []
    frames: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rank in range(job.mesh.world):
        if rank in job.truth.missing:
            continue
        dump = make_dump(job, rank, offsets, frames)
        path = folder / style.format(rank=rank)
        path.write_bytes(json.dumps(dump).encode() if job.dialect.is_json else pickle.dumps(dump, protocol=2))
        written_ns = EPOCH_NS + job.dump_ns[rank] + job.dialect.copied_after_ns
        os.utime(path, ns=(written_ns, written_ns))
        paths.append(path)
    return paths


def make_dump(
    job: Job, rank: int, offsets: dict[str, int], frames: dict[tuple[str, str], list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return what a rank's recorder holds."""
    dialect = job.dialect
    minor = int(dialect.version.split(".")[1])
    ids = _number_groups(job, rank)
    groups = {group.name: group for group in job.mesh.of_rank[rank].values()}
    dump: dict[str, Any] = {
        "version": dialect.version,
        "pg_config": {
            name: {"name": name, "desc": groups[name].description, "ranks": str(list(groups[name].ranks))}
            for name in sorted(groups)
        },
    }
    if minor >= 7:
        dump["comm_lib_version" if minor >= 10 else "nccl_version"] = "2.27.3"
    dump["pg_status"] = _make_status(job, rank, offsets, ids)
    is_active = dialect.only_active
    entries = [
        _make_entry(job, entry, offsets, ids, minor, frames, part, coalesced, record_id)
        for entry in list_kept(job, rank)
        if not (is_active and _is_done(job, entry) and not entry.op.parts)
        for part, coalesced, record_id in _list_records(entry)
        if not (is_active and coalesced and _is_done(job, entry))
    ]
    if entries or not dialect.is_json:
        dump["entries"] = entries
    return dump


def _is_done(job: Job, entry: Entry) -> bool:
    return (
        not job.outcome.is_pending(entry)
        and entry.completed_ns is not None
        and entry.completed_ns <= job.dump_ns[entry.rank]
    )


def _list_records(entry: Entry) -> list[tuple[Op, bool, int]]:
    """Return what the recorder notes of an entry: the parts of a coalesced one, then the whole; their ids."""
    parts = entry.op.parts
    first = entry.record_id - len(parts)
    return [
        *((part, False, first + place) for place, part in enumerate(parts)),
        (entry.op, bool(parts), entry.record_id),
    ]


def _number_groups(job: Job, rank: int) -> dict[str, int]:
    """Return the rank's own numbers of its groups: in the order of the names, with gaps."""
    names = sorted((group.name for group in job.mesh.of_rank[rank].values()), key=int)
    return {name: place + (place + 1) // 3 for place, name in enumerate(names)}


def _make_status(job: Job, rank: int, offsets: dict[str, int], ids: dict[str, int]) -> dict[str, Any]:
    """Return the last operation of each group that was enqueued, started and completed.

    As in torch, a send or receive sets it to the count of sends and receives, in the same place.
    """
    write = str if job.dialect.is_json else int
    last: dict[str, list[int]] = {}
    if job.dialect.earlier_steps:
        last = {name: [offsets[name], offsets[name], offsets[name]] for name in ids}
    for entry in job.schedule.entries[rank]:
        if entry.created_ns > job.dump_ns[rank]:
            break
        assert entry.op.group is not None
        name = entry.op.group.name
        sequence = (entry.sequence if entry.op.is_collective else entry.p2p_sequence) + offsets[name]
        numbers = last.setdefault(name, [0, 0, 0])
        numbers[0] = sequence
        if _is_done(job, entry):
            numbers[2] = max(numbers[2], sequence)
        if entry.started_ns is not None and entry.started_ns <= job.dump_ns[rank]:
            numbers[1] = max(numbers[1], sequence)
    return {
        str(ids[name]): {
            "last_enqueued_collective": write(numbers[0]),
            "last_started_collective": write(numbers[1] if job.dialect.has_timing else -1),
            "last_completed_collective": write(numbers[2] or -1),
        }
        for name, numbers in sorted(last.items(), key=lambda each: ids[each[0]])
    }


def _make_entry(
    job: Job,
    entry: Entry,
    offsets: dict[str, int],
    ids: dict[str, int],
    minor: int,
    frames: dict[tuple[str, str], list[dict[str, Any]]],
    op: Op,
    is_whole: bool,
    record_id: int,
) -> dict[str, Any]:
    """Return one record. Parts of a coalesced operation have no events: they stay "scheduled" for ever."""
    dialect, group = job.dialect, entry.op.group
    assert group is not None
    offset, clock_ns = offsets[group.name], EPOCH_NS + dialect.clocks_ns[entry.rank]
    is_part = bool(entry.op.parts) and not is_whole
    is_done = not is_part and _is_done(job, entry)
    is_started = not is_part and dialect.has_timing and entry.started_ns is not None
    unknown = 0 if dialect.is_json else None
    record: dict[str, Any] = {}
    if dialect.has_frames:
        record["frames"] = frames.setdefault((op.kind, op.site), _make_frames(op))
    record["record_id"] = record_id + dialect.earlier_steps * 20
    record["pg_id"] = ids[group.name]
    name = (group.name, group.description)
    record["process_group"] = list(name) if dialect.is_json else name
    if minor >= 9:
        record["thread_name"], record["thread_id"] = "pt_main_thread", str(139_000_000_000_000 + entry.rank)
    record["collective_seq_id"] = entry.sequence + offset
    record["p2p_seq_id"] = entry.p2p_sequence + offset if entry.p2p_sequence else 0
    record["op_id"] = entry.op_id + offset
    record["profiling_name"] = f"nccl:{_name_operation(op, group, entry.rank)}"
    record["time_created_ns"] = clock_ns + entry.created_ns
    if is_done and dialect.has_timing:
        record["duration_ms"] = ((entry.completed_ns or 0) - (entry.started_ns or 0)) / 1e6
    record["input_sizes"], record["input_dtypes"] = op.in_sizes, [op.dtype] * len(op.in_sizes)
    record["output_sizes"], record["output_dtypes"] = op.out_sizes, [op.dtype] * len(op.out_sizes)
    record["state"] = "completed" if is_done else "started" if is_started else "scheduled"
    record["time_discovered_started_ns"] = clock_ns + (entry.started_ns or 0) if is_started else unknown
    record["time_discovered_completed_ns"] = clock_ns + (entry.completed_ns or 0) if is_done else unknown
    record["retired"] = is_done
    record["timeout_ms"] = TIMEOUT_MS
    record["is_p2p"] = not entry.op.is_collective
    return record


def _name_operation(op: Op, group: Group, rank: int) -> str:
    if op.peer < 0:
        return op.kind
    arrow = "->" if op.kind == "send" else "<-"
    return f"{op.kind} {group.ranks.index(rank)}{arrow}{group.ranks.index(op.peer)}"


def _make_frames(op: Op) -> list[dict[str, Any]]:
    """Return the Python frames of an operation, innermost first."""
    return [
        {
            "name": op.kind,
            "filename": "torch/distributed/distributed_c10d.py",
            "line": LINES.get(op.kind, 3900),
        },
        {"name": "wrapper", "filename": "torch/distributed/c10d_logger.py", "line": 83},
        {"name": op.site, "filename": "/job/train.py", "line": 100 + sum(op.site.encode()) % 300},
        {"name": "<module>", "filename": "/job/train.py", "line": 480},
    ]
