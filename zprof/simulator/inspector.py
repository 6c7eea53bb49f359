"""Write the collectives and messages of a simulated job as NCCL's Inspector does: one file per process.

The times are those of the simulated kernels, in whole microseconds. As by default, messages below 8 KiB are
left out. Lines are written in batches, as by the plugin's dump thread. All-to-all is sends and receives.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from zprof.simulator.job import Vendor, hash_key
from zprof.simulator.ledger import find_origin
from zprof.simulator.mesh.layout import MeshGroups
from zprof.simulator.state import Collective, Schedule, Task
from zprof.simulator.trace_writer import GroupNames, Row, get_process

_NAMES: Final = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}
_REVISION: Final[dict[Vendor, str]] = {"nvidia": "v2.30.7-1", "amd": "rccl-2.28.3", "gloo": ""}
_MIN_BYTES: Final = 8192
_DUMP_INTERVAL_US: Final = 5_000


def write_inspector_files(
    schedule: Schedule, folder: Path, ranks: Iterable[int], *, verbose: bool = False
) -> list[Path]:
    """Write the files of some ranks; ``verbose``: with the times of kernel starts."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[int, list[tuple[int, bytes]]] = {rank: [] for rank in ranks}
    writer = _Writer(schedule, verbose=verbose)
    for operation in schedule.collectives:
        for rank, task in operation.tasks.items():
            entries = writer.list_entries(operation, rank, task)
            if rank in lines:
                lines[rank] += [(task.end, msgspec.json.encode(entry) + b"\n") for entry in entries]
    paths = []
    for rank, written in lines.items():
        path = folder / f"{writer.name_host(rank)}-pid{get_process(schedule.job, rank)}.log"
        path.write_bytes(b"".join(line for _, line in sorted(written)))
        paths.append(path)
    return paths


class _Writer:
    """Numbers the operations of all communicators."""

    def __init__(self, schedule: Schedule, *, verbose: bool) -> None:
        self.job = job = schedule.job
        self.groups = MeshGroups(job.parallel) if job.parallel else GroupNames(job)
        self.verbose = verbose
        self.origin = find_origin(schedule)
        self.counts: Counter[tuple[int, str]] = Counter()
        self.numbers: dict[int, int] = {}
        self.messages: dict[tuple[int, int], int] = defaultdict(int)

    def name_host(self, rank: int) -> str:
        """Return the name of a rank's node."""
        return f"node-{rank // self.job.cluster.ranks_per_node}"

    def list_entries(self, operation: Collective, rank: int, task: Task) -> list[Row]:
        """Return the lines of an operation on a rank."""
        job = self.job
        kind, _, sent, got, itemsize = task.info[:5]
        name, description, members = self.groups.describe(operation.comm, rank)
        communicator = hash_key("communicator", name, *members) % (1 << 56)
        nodes = {member // job.cluster.ranks_per_node for member in members}
        clock_us = (self.origin + task.end + job.starts[rank].clock_offset_ns) // 1000
        dumped_us = (clock_us // _DUMP_INTERVAL_US + 1) * _DUMP_INTERVAL_US
        line: Row = {
            "header": {
                "id": f"{communicator:#x}", "comm_name": description, "rank": members.index(rank),
                "n_ranks": len(members), "nnodes": len(nodes),
            },
            "metadata": {
                "inspector_output_format_version": "v4.0", "git_rev": _REVISION[job.dialect.vendor],
                "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": dumped_us,
                "hostname": self.name_host(rank), "pid": get_process(job, rank),
            },
        }  # fmt: skip
        duration_us = (task.end - task.start) // 1000
        start_us = (self.origin + task.start + job.starts[rank].clock_offset_ns) // 1000
        if operation.sender < 0 and kind in _NAMES:
            size = int(got if kind == "reduce_scatter" else sent) * int(itemsize)
            number = self.numbers.get(id(operation))
            if number is None:
                number = self.numbers[id(operation)] = self.counts[communicator, str(kind)]
                self.counts[communicator, str(kind)] += 1
            entry = self.measure("coll", _NAMES[str(kind)], number, size, duration_us, start_us, len(members))
            return [line | {"coll_perf": entry}] if size >= _MIN_BYTES else []
        size = max(int(sent), int(got)) * int(itemsize)
        if operation.sender >= 0:
            others = [member for member in operation.members if member != rank]
            kinds = ["Send" if operation.sender == rank else "Recv"]
        else:
            others, kinds = [member for member in members if member != rank], ["Send", "Recv"]
            size //= len(members)
        lines = []
        for peer in others:
            for each in kinds:
                self.messages[communicator, rank] += 1
                number = self.messages[communicator, rank]
                entry = self.measure("p2p", each, number, size, duration_us, start_us, len(members))
                lines.append(line | {"p2p_perf": entry | {"p2p_peer": members.index(peer)}})
        return lines if size >= _MIN_BYTES else []

    def measure(
        self, prefix: str, name: str, number: int, size: int, duration_us: int, start_us: int, ranks: int
    ) -> Row:
        """Return the part of a line with the figures of the operation, in NCCL's definitions."""
        traffic = size * ranks if name in ("AllGather", "ReduceScatter") else size
        share = (ranks - 1) / ranks
        factor = {"AllReduce": 2 * share, "AllGather": share, "ReduceScatter": share}.get(name, 1.0)
        bandwidth = traffic / 1e3 / duration_us if duration_us else 0.0
        entry: Row = {
            prefix: name, f"{prefix}_sn": number, f"{prefix}_msg_size_bytes": size,
            f"{prefix}_exec_time_us": duration_us, f"{prefix}_timing_source": "kernel_gpu",
            f"{prefix}_algobw_gbs": round(bandwidth, 6), f"{prefix}_busbw_gbs": round(bandwidth * factor, 6),
        }  # fmt: skip
        if self.verbose:
            end_us = start_us + duration_us
            kernel = {"channel_id": 0, "kernel_start_ts": start_us, "kernel_stop_ts": end_us}
            entry["event_trace_ts"] = {f"{prefix}_start_ts": start_us, "kernel_events": [kernel]}
        return entry
