"""Write the traces of a simulated job as Nsight Systems exports them: one SQLite file per node.

Made from the events of the Kineto traces, which have the same times. NCCL's calls have payloads in JSON, as
``nsys export --include-json true`` writes them; operators are the ranges of ``emit_nvtx``.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from zprof.simulator.job import hash_key
from zprof.simulator.state import Schedule
from zprof.simulator.trace_writer import Row, TraceWriter

_TABLES: Final = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": "id INTEGER NOT NULL, name TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, "
    "copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, "
    "globalTid INTEGER, textId INTEGER, domainId INTEGER, jsonText TEXT",
}
_CALLS: Final = {
    "allreduce": "ncclAllReduce", "_allgather_base": "ncclAllGather", "all_to_allv": "ncclAlltoAll",
    "_reduce_scatter_base": "ncclReduceScatter", "send": "ncclSend", "recv": "ncclRecv",
}  # fmt: skip
_COPIES: Final = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_ITEM_BYTES: Final = {"BFloat16": 2, "Float": 4}
_PUSH_POP, _NCCL_DOMAIN, _VM = 59, 1, 1 << 48


def write_nsight_files(schedule: Schedule, folder: Path, ranks: Iterable[int]) -> list[Path]:
    """Write a file for each node; the ranks of a node share it."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        nodes[rank // schedule.job.cluster.ranks_per_node].append(rank)
    paths = []
    for node, members in nodes.items():
        path = folder / f"node{node}.sqlite"
        path.unlink(missing_ok=True)
        traces = [TraceWriter(schedule, schedule.ranks[rank]).build() for rank in members]
        _NodeWriter(path, f"node-{node}").write(traces)
        paths.append(path)
    return paths


class _NodeWriter:
    """The export of one node."""

    def __init__(self, path: Path, host: str) -> None:
        self.connection = sqlite3.connect(path)
        for name, columns in _TABLES.items():
            self.connection.execute(f"CREATE TABLE {name} ({columns})")
        self.texts: dict[str, int] = {}
        self.host = host
        self.origin = 0

    def write(self, traces: Sequence[Row]) -> None:
        """Write all ranks of the node, with times since the start of the session."""
        starts = [
            _to_ns(trace, event["ts"])
            for trace in traces
            for event in trace["traceEvents"]
            if event["ph"] == "X"
        ]
        self.origin = min(starts) - 1_000_000
        for trace in traces:
            self.write_rank(trace)
        self.add("TARGET_INFO_SESSION_START_TIME", [(self.origin, "", "")])
        self.add("TARGET_INFO_SYSTEM_ENV", [(0, "", "Hostname", 0, self.host)])
        self.add("META_DATA_EXPORT", [("EXPORT_SCHEMA_VERSION", "3.25.0")])
        devices = {each["id"]: each["name"] for trace in traces for each in trace["deviceProperties"]}
        self.add("TARGET_INFO_GPU", list(devices.items()))
        self.add("StringIds", [(number, text) for text, number in self.texts.items()])
        self.connection.commit()
        self.connection.close()

    def add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append rows."""
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self.connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self.texts.setdefault(text, len(self.texts) + 1)

    def write_rank(self, trace: Row) -> None:
        """Write the events of a rank."""
        events = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] != "Trace"]
        process = next(event["pid"] for event in events if event["cat"] == "cpu_op")
        place = _VM | process << 24
        kernels, copies, calls, ranges = [], [], [], self.list_groups(trace, place)
        for event in events:
            args, cat, name = event["args"], event["cat"], event["name"]
            start = _to_ns(trace, event["ts"]) - self.origin
            end = _to_ns(trace, event["ts"], event["dur"]) - self.origin
            if cat in ("kernel", "gpu_memcpy"):
                where = (start, end, args["device"], 1, args["stream"], args["correlation"], place)
            if cat == "kernel":
                kernels.append((*where, self.number(name), self.number(name.partition("(")[0])))
            elif cat == "gpu_memcpy":
                copies.append((*where, args["bytes"], _COPIES[name.split()[1]]))
            elif cat == "cuda_runtime":
                number = self.number(f"{name}_v3020")
                calls.append((start, end, 0, place | event["tid"], args["correlation"], number, 0))
            elif cat in ("cpu_op", "user_annotation"):
                ranges += self.list_ranges(event, start, end, place | event["tid"])
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", kernels)
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", copies)
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", calls)
        self.add("NVTX_EVENTS", [*ranges, *self.list_batches(trace, events, place)])

    def list_groups(self, trace: Row, place: int) -> list[tuple[Any, ...]]:
        """Return the calls that make the communicators, at the start of the session."""
        info = trace["distributedInfo"]
        return [
            self.make_nccl(
                "ncclCommInitRank", 1000 * at, 1000 * at + 500, place | 1,
                {
                    "NCCL communicator ID": _identify(group["pg_name"], group["ranks"]),
                    "No. of ranks": len(group["ranks"]),
                    "Rank": group["ranks"].index(info["rank"]),
                    "CUDA device": info["rank"],
                },
            )
            for at, group in enumerate(info["pg_config"])
        ]  # fmt: skip

    def make_nccl(self, name: str, start: int, end: int, thread: int, payload: Row) -> tuple[Any, ...]:
        """Return a range of NCCL's domain."""
        text = json.dumps(payload) if payload else None
        return start, end, _PUSH_POP, None, thread, self.number(name), _NCCL_DOMAIN, text

    def list_ranges(self, event: Row, start: int, end: int, thread: int) -> list[tuple[Any, ...]]:
        """Return the range of an operator, an annotation or a call of NCCL; none for torch's own of NCCL."""
        name, args = event["name"], event["args"]
        if name == "record_param_comms":
            return [self.make_nccl(_CALLS[args["Collective name"]], start, end, thread, _make_payload(args))]
        if name.startswith("nccl:"):
            return []
        text = f"{name}, op_id = {args['External id']}" if event["cat"] == "cpu_op" else name
        return [(start, end, _PUSH_POP, text, thread, None, 0, None)]

    def list_batches(self, trace: Row, events: Sequence[Row], place: int) -> list[tuple[Any, ...]]:
        """Return start and end of each group of messages: the end launches their kernel."""
        rows = []
        first: dict[int, int] = {}
        for event in sorted(events, key=lambda event: event["ts"]):
            thread, start = event["tid"], _to_ns(trace, event["ts"]) - self.origin
            if event["name"] == "record_param_comms" and event["args"]["Collective name"] in ("send", "recv"):
                first.setdefault(thread, start)
            elif event["name"] == "nccl:coalesced" and event["cat"] == "user_annotation" and thread in first:
                begin, end = first.pop(thread), _to_ns(trace, event["ts"], event["dur"]) - self.origin
                rows.append(self.make_nccl("ncclGroupStart", begin - 2, begin - 1, place | thread, {}))
                rows.append(self.make_nccl("ncclGroupEnd", start, end, place | thread, {}))
            elif event["name"].startswith("nccl:") and event["cat"] == "user_annotation":
                first.pop(thread, None)  # a message of its own
        return rows


def _to_ns(trace: Row, ts: float, dur: float = 0.0) -> int:
    """Return a time of a trace in ns since 1970, exactly."""
    return int(trace.get("baseTimeNanoseconds", 0)) + int((Decimal(repr(ts)) + Decimal(repr(dur))) * 1000)


def _identify(name: str, ranks: Sequence[int]) -> int:
    return hash_key("communicator", name, *ranks) % (1 << 62)


def _make_payload(args: Row) -> Row:
    """Return what NCCL says about a call: bytes for one peer or shard."""
    ranks = json.loads(args["Process Group Ranks"])
    is_scattered = args["Collective name"] == "_reduce_scatter_base"
    count = args["Out msg nelems" if is_scattered else "In msg nelems"] * _ITEM_BYTES[args["dtype"]]
    if args["Collective name"] == "all_to_allv":
        count //= len(ranks)
    payload = {
        "NCCL communicator ID": _identify(args["Process Group Name"], ranks),
        "Message size [bytes]": count,
    }
    peer = args.get("Dst Rank", args.get("Src Rank"))
    return payload if peer is None else payload | {"Peer rank": ranks.index(peer)}
