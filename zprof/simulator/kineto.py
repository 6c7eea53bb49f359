"""Write what happened in a simulated job as Kineto does: one JSON file per rank."""

from __future__ import annotations

import gzip
import io
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from zprof.simulator import kernels
from zprof.simulator import operations as p
from zprof.simulator.job import Job, hash_key, uniform
from zprof.simulator.state import Rank, Schedule, Task

Row = dict[str, Any]
_BASE_NS: Final = 1_751_410_836_000_000_000
_WINDOW_NS: Final = 1_428_625_731_000_000
_DTYPES: Final = {2: "BFloat16", 4: "Float"}
_C10D: Final = {
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base"),
    "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base"),
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce"),
}
_CBIDS: Final = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMemcpyAsync": 41, "cudaDeviceSynchronize": 165,
    "cudaStreamSynchronize": 131, "cudaEventSynchronize": 137, "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147, "cudaMalloc": 20, "cudaFree": 22,
}  # fmt: skip


class Clock:
    """Turn true times into the numbers of one rank's file."""

    def __init__(self, job: Job, rank: int) -> None:
        start = job.starts[rank]
        self.drift, self.offset = 1.0 + start.clock_drift, start.clock_offset_ns
        self.integer = job.dialect.era == "old"
        self.based = job.dialect.era == "new" or (job.dialect.era == "mid" and uniform(job.key, "base") < 0.5)
        self.zero = _WINDOW_NS + (hash_key(job.key, "window") % 10**12)
        if not self.based:
            self.zero += _BASE_NS

    def ns(self, time: int) -> int:
        """Return this rank's clock at a true time."""
        return self.zero + self.offset + round(time * self.drift)

    def span(self, start: int, duration: int) -> tuple[float | int, float | int]:
        """Return `ts` and `dur` in microseconds."""
        begin, end = self.ns(start), self.ns(start + duration)
        if self.integer:
            return begin // 1000, end // 1000 - begin // 1000
        return begin / 1000, (end - begin) / 1000


class GroupNames:
    """Names of the process groups, as device meshes make them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.hybrid = job.shard_size < job.world

    def describe(self, comm: int, rank: int) -> tuple[str, str, list[int]]:
        """Return name, description and members of a communicator of a rank."""
        job, size = self.job, self.job.shard_size
        if comm == p.SHARD_COMM and self.hybrid:
            group = rank // size
            return str(1 + group), "mesh_dp_shard", list(range(group * size, (group + 1) * size))
        if comm == p.REPLICA_COMM:
            place = rank % size
            return (
                str(1 + job.world // size + place),
                "mesh_dp_replicate",
                list(range(place, job.world, size)),
            )
        return "0", "default_pg", list(range(job.world))


class TraceWriter:
    """Build the trace of one rank."""

    def __init__(self, schedule: Schedule, rank: Rank) -> None:
        self.job = job = schedule.job
        self.rank = rank
        self.clock = Clock(job, rank.index)
        self.dialect = job.dialect
        self.groups = GroupNames(job)
        self.device = rank.index % job.cluster.ranks_per_node
        self.pid = 20_000 + hash_key(job.key, "pid", rank.index) % 900_000
        self.tids = (self.pid, self.pid + 700 + hash_key(job.key, "tid", rank.index) % 4000)
        others = 13 + 4 * (hash_key(job.key, "stream") % 4)
        self.streams = {
            p.COMPUTE: 7, p.COPY_IN: others + 4, p.GATHER: others + 8, p.REDUCE: others + 12,
            p.REPLICA: others + 16, p.WORLD: others + 31, p.NCCL_SHARD: others + 27,
        }  # fmt: skip
        self.cpu: list[tuple[int, Row]] = []
        self.gpu: list[Row] = []

    def metadata(self, comm: int, raw: str, sent: int, got: int, itemsize: int, number: int) -> Row:
        """Return the arguments that describe a collective, as far as this torch writes them."""
        name, description, ranks = self.groups.describe(comm, self.rank.index)
        row: Row = {
            "Collective name": raw, "In msg nelems": sent, "Out msg nelems": got, "Group size": len(ranks),
            "dtype": _DTYPES[itemsize], "In split size": "[]", "Out split size": "[]",
            "Process Group Name": name, "Process Group Description": description,
            "Process Group Ranks": str(ranks),
        }  # fmt: skip
        if self.dialect.sequence:
            row["Seq"] = number + hash_key(self.job.key, "seq", name) % 5000
        return row

    def add(self, cat: str, name: str, tid: int, start: int, duration: int, args: Row) -> None:
        """Append a row of a host thread."""
        ts, dur = self.clock.span(start, duration)
        row = {
            "ph": "X", "cat": cat, "name": name, "pid": self.pid, "tid": self.tids[tid], "ts": ts, "dur": dur,
            "args": args,
        }  # fmt: skip
        (self.cpu.append((tid, row)) if not cat.startswith("cuda") else self.gpu.append(row))

    def add_flow(self, phase: str, correlation: int, pid: int, tid: int, ts: float | int) -> None:
        """Append one end of the arrow from a launch to its kernel."""
        flow: Row = {
            "ph": phase, "id": correlation, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g",
        }  # fmt: skip
        if phase == "f":
            flow["bp"] = "e"
        self.gpu.append(flow)

    def add_runtime(
        self, name: str, tid: int, start: int, duration: int, correlation: int, external: int
    ) -> None:
        """Append a CUDA runtime call; launches and copies get an arrow."""
        args = {"External id": external, "cbid": _CBIDS.get(name, 211), "correlation": correlation}
        self.add("cuda_runtime", name, tid, start, duration, args)
        if name.startswith("cudaLaunch") or name == "cudaMemcpyAsync":
            self.add_flow("s", correlation, self.pid, self.tids[tid], self.gpu[-1]["ts"])

    def add_host_rows(self) -> None:
        """Append what the host threads did."""
        for row in self.rank.host_rows:
            cat, name, tid, start, duration, correlation, external, _step = row[:8]
            assert isinstance(tid, int)
            assert isinstance(start, int)
            assert isinstance(duration, int)
            assert isinstance(correlation, int)
            assert isinstance(external, int)
            if cat == "cuda_runtime":
                self.add_runtime(str(name), tid, start, duration, correlation, external)
                if len(row) > 8 and self.dialect.syncs:
                    self.add_sync(str(row[8]), int(row[9]), start, duration, correlation, external)
            elif cat == "collective":
                self.add_collective_call(row, tid, start, duration, correlation, external)
            elif cat == "python_function":
                args: Row = {"Python parent id": None, "Python id": external, "Ev Idx": 0}
                self.add("python_function", str(name), tid, start, duration, args)
            else:
                args = {"External id": external, "Record function id": external, "Ev Idx": 0}
                if tid == p.AUTOGRAD and str(name).startswith("autograd::"):
                    args |= {"Sequence number": external % 3000, "Fwd thread id": 1}
                if self.dialect.shapes and cat == "cpu_op":
                    args |= {
                        "Concrete Inputs": [""], "Input type": ["c10::BFloat16"],
                        "Input Strides": [[4096, 1]], "Input Dims": [[4096, 4096]],
                    }  # fmt: skip
                self.add(str(cat), str(name), tid, start, duration, args)
        if self.dialect.profiler_step:
            for number, (start, end) in enumerate(self.rank.step_host):
                name = f"ProfilerStep#{self.dialect.first_step + number}"
                start += 1_000 if number else 0  # the loop's own time between two steps
                self.add("user_annotation", name, p.MAIN, start, end - start,
                         {"External id": 500_000 + number, "Record function id": 0, "Ev Idx": 0})  # fmt: skip

    def add_collective_call(
        self,
        row: tuple[int | str, ...],
        tid: int,
        start: int,
        duration: int,
        correlation: int,
        external: int,
    ) -> None:
        """Append the rows of a c10d call: operator, parameters, annotation, events around the kernel."""
        _, raw, sent, got, itemsize, number, comm = row[8:15]
        operator, annotation = _C10D[str(raw)]
        plain = {"External id": external - 1, "Record function id": external, "Ev Idx": 0}
        self.add("cpu_op", operator, tid, start, duration, plain)
        args: Row = {"External id": external, "Record function id": external, "Ev Idx": 0}
        if self.dialect.metadata:
            args |= self.metadata(int(comm), str(raw), int(sent), int(got), int(itemsize), int(number))
            args |= {"Global rank start": 0, "Global rank stride": 1}
        inner = start + min(duration // 8, 4_000)
        length = duration - min(duration // 6, 6_000)
        self.add("cpu_op", "record_param_comms", tid, inner, length, args)
        named = {"External id": external + 1, "Record function id": external, "Ev Idx": 0}
        lead = min(length // 5, 9_000)
        self.add("user_annotation", annotation, tid, inner + lead, length - lead - 1_500, named)
        self.add_runtime("cudaEventRecord", tid, inner + 2_000, 1_400, correlation - 2, external)
        self.add_runtime("cudaStreamWaitEvent", tid, inner + 4_100, 1_300, correlation - 1, external)

    def add_sync(
        self, what: str, target: int, start: int, duration: int, correlation: int, external: int
    ) -> None:
        """Append a `cuda_sync` row, which newer CUPTI writes for host synchronization."""
        kind = {"device": "Context Sync", "stream": "Stream Sync", "event": "Event Sync"}[what]
        stream = self.streams[target] if what == "stream" else -1
        ts, dur = self.clock.span(start, duration)
        args = {
            "External id": external, "cuda_sync_kind": kind, "wait_on_stream": stream,
            "wait_on_cuda_event_record_corr_id": -1, "wait_on_cuda_event_id": 9, "stream": stream,
            "correlation": correlation, "device": self.device, "context": 1,
        }  # fmt: skip
        row = {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": self.device, "tid": stream}
        self.gpu.append(row | {"ts": ts, "dur": dur, "args": args})

    def add_gpu_rows(self) -> None:
        """Append kernels and copies with their arrows."""
        for task in self.rank.tasks:
            assert task.stream is not None
            stream = self.streams[task.stream.name]
            ts, dur = self.clock.span(task.start, task.end - task.start)
            args: Row = {"External id": task.external}
            if task.cat == "memcpy":
                direction, size = task.info
                name = {
                    "HtoD": "Memcpy HtoD (Pinned -> Device)",
                    "DtoH": "Memcpy DtoH (Device -> Pinned)",
                }[str(direction)]
                rate = int(size) / max(1, task.end - task.start)
                args |= {
                    "device": self.device, "context": 1, "stream": stream,
                    "correlation": task.correlation, "bytes": size, "memory bandwidth (GB/s)": rate,
                }  # fmt: skip
                cat = "gpu_memcpy"
            else:
                cat = "kernel"
                name = self.describe_kernel(task, stream, args)
            self.gpu.append({"ph": "X", "cat": cat, "name": name, "pid": self.device, "tid": stream, "ts": ts,
                             "dur": dur, "args": args})  # fmt: skip
            self.add_flow("f", task.correlation, self.device, stream, ts)

    def describe_kernel(self, task: Task, stream: int, args: Row) -> str:
        """Fill in the arguments of a kernel and return its name."""
        if task.cat == "collective":
            operation, raw, sent, got, itemsize, number = task.info
            name = kernels.name_collective(str(operation), int(itemsize), self.dialect.era)
            channels = 2 if int(got) < 4096 else 8 + 4 * (hash_key(self.job.key, "channels") % 5)
            grid: tuple[int, ...] = (channels, 1, 1)
            block: tuple[int, ...] = (544, 1, 1)
            registers, shared = 96, 87_568
            extra = (
                self.metadata(task.kind, str(raw), int(sent), int(got), int(itemsize), int(number))
                if self.dialect.metadata
                else {}
            )
        else:
            kind = kernels.KINDS[task.kind]
            name, grid, block, registers, shared = (
                kind.name,
                kind.grid,
                kind.block,
                kind.registers,
                kind.shared,
            )
            extra = {}
        blocks = round(grid[0] * grid[1] * grid[2] / self.job.gpu.sms, 6)
        warps = round(blocks * block[0] * block[1] * block[2] / 32, 6)
        args |= {
            "queued": 0, "device": self.device, "context": 1, "stream": stream,
            "correlation": task.correlation, "registers per thread": registers, "shared memory": shared,
            "blocks per SM": blocks,
            "warps per SM": warps, "grid": list(grid), "block": list(block),
            "est. achieved occupancy %": min(100, int(warps * 100 / 64)),
        } | extra  # fmt: skip
        return name

    def add_gpu_annotations(self) -> None:
        """Append the GPU side of annotations: from the first to the last work launched inside, per stream."""
        launches = sorted(
            ((t.avail - self.job.host.latency_ns, t) for t in self.rank.tasks), key=lambda x: x[0]
        )
        times = [time for time, _ in launches]
        ranges = [
            (str(r[1]), int(r[3]), int(r[4]), int(r[6]))
            for r in self.rank.host_rows
            if r[0] == "user_annotation"
        ]
        ranges += [
            (_C10D[str(r[1])][1], int(r[3]), int(r[4]), int(r[6]) + 1)
            for r in self.rank.host_rows
            if r[0] == "collective"
        ]
        if self.dialect.profiler_step:
            first = self.dialect.first_step
            ranges += [
                (f"ProfilerStep#{first + i}", a, b - a, 500_000 + i)
                for i, (a, b) in enumerate(self.rank.step_host)
            ]
        for name, start, duration, external in ranges:
            spans: dict[int, tuple[int, int]] = {}
            for _, task in launches[bisect_left(times, start) : bisect_right(times, start + duration)]:
                assert task.stream is not None
                low, high = spans.get(task.stream.name, (task.start, task.end))
                spans[task.stream.name] = min(low, task.start), max(high, task.end)
            for stream, (low, high) in spans.items():
                ts, dur = self.clock.span(low, high - low)
                self.gpu.append({
                    "ph": "X", "cat": "gpu_user_annotation", "name": name, "pid": self.device,
                    "tid": self.streams[stream], "ts": ts, "dur": dur, "args": {"External id": external},
                })  # fmt: skip

    def build_events(self) -> list[Row]:
        """Return all events in the order of a real file."""
        self.add_host_rows()
        self.add_gpu_rows()
        if self.dialect.gpu_annotations:
            self.add_gpu_annotations()
        self.cpu.sort(key=lambda item: (-item[0], item[1]["ts"], -item[1]["dur"]))
        for index, (_, row) in enumerate(self.cpu):
            row["args"]["Ev Idx"] = index
        return [row for _, row in self.cpu] + self.gpu

    def closing_rows(self) -> list[Row]:
        """Return names of processes and threads, and the rows of the profiler itself."""
        begin, duration = self.clock.span(
            self.rank.window[0] - 120_000, self.rank.window[1] - self.rank.window[0]
        )
        rows: list[Row] = []

        def meta(name: str, pid: int | str, tid: int, args: Row) -> None:
            rows.append({"name": name, "ph": "M", "ts": begin, "pid": pid, "tid": tid, "args": args})

        meta("process_name", self.pid, 0, {"name": "python3"})
        meta("process_labels", self.pid, 0, {"labels": "CPU"})
        meta("process_sort_index", self.pid, 0, {"sort_index": self.pid})
        for device in range(self.job.cluster.ranks_per_node):
            meta("process_name", device, 0, {"name": "python3"})
            meta("process_labels", device, 0, {"labels": f"GPU {device}"})
            meta("process_sort_index", device, 0, {"sort_index": 5_000_000 + device})
        used = {t.stream.name for t in self.rank.tasks if t.stream is not None}
        for stream in sorted(self.streams[name] for name in used):
            meta("thread_name", self.device, stream, {"name": f"stream {stream} "})
            meta("thread_sort_index", self.device, stream, {"sort_index": stream})
        for tid, name in zip(self.tids, ("pt_main_thread", "pt_autograd_0"), strict=True):
            meta("thread_name", self.pid, tid, {"name": f"thread {tid} ({name})"})
            meta("thread_sort_index", self.pid, tid, {"sort_index": tid})
        rows.append({
            "ph": "X", "cat": "Trace", "ts": begin, "dur": duration, "pid": "Spans",
            "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0},
        })  # fmt: skip
        rows.append({"name": "process_sort_index", "ph": "M", "ts": begin, "pid": "Spans", "tid": 0,
                     "args": {"sort_index": 536870912}})  # fmt: skip
        rows.append({"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces",
                     "tid": "Trace PyTorch Profiler", "ts": begin})  # fmt: skip
        rows.append(
            {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": begin + duration}
        )
        return rows

    def distributed_info(self) -> Row:
        """Return the description of process groups, in the form of the file's age."""
        job, era = self.job, self.dialect.era
        info: Row = {"backend": "nccl", "rank": self.rank.index, "world_size": job.world}
        if era == "old":
            return info
        comms = [p.WORLD_COMM, p.SHARD_COMM, p.REPLICA_COMM] if self.groups.hybrid else [p.WORLD_COMM]
        config = []
        for comm in comms:
            name, description, ranks = self.groups.describe(comm, self.rank.index)
            entry: Row = {"pg_name": name, "pg_desc": description, "backend_config": "cuda:nccl",
                          "pg_size": len(ranks), "ranks": ranks}  # fmt: skip
            if era == "mid" and not self.dialect.metadata:
                entry["uid"] = entry.pop("pg_desc") and 0
            config.append(entry)
        return info | {"pg_count": len(config), "pg_config": config,
                       "nccl_version": "2.27.5" if era == "new" else "2.20.5"}  # fmt: skip

    def build(self) -> Row:
        """Return the whole trace."""
        job, dialect = self.job, self.dialect
        properties = [
            {"id": i, "name": job.gpu.name, "totalGlobalMem": job.gpu.memory_bytes, "computeMajor": 9,
             "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
             "regsPerBlock": 65536, "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": job.gpu.sms,
             "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448,
             "sharedMemPerMultiprocessor": 233472}
            for i in range(job.cluster.ranks_per_node)
        ]  # fmt: skip
        trace: Row = {"schemaVersion": 1, "deviceProperties": properties}
        if dialect.era == "new":
            trace |= {"cupti_version": 26, "cuda_runtime_version": 12080, "cuda_driver_version": 12090}
        if dialect.distributed_info:
            trace["distributedInfo"] = self.distributed_info()
        if dialect.shapes:
            trace["record_shapes"] = 1
        if dialect.python_rows:
            trace["with_stack"] = 1
        if dialect.era != "old":
            trace["trace_id"] = f"{hash_key(job.key, 'trace id'):016X}{hash_key(job.key, 'id 2'):016X}"
        tail: Row = {"displayTimeUnit": "ms"}
        if self.clock.based:
            tail["baseTimeNanoseconds"] = _BASE_NS
        events = self.build_events() + self.closing_rows()
        if dialect.keys_first:
            return (
                trace | tail | {"traceEvents": events, "traceName": f"/tmp/trace/rank{self.rank.index}.json"}
            )
        name = {"traceName": f"/tmp/trace/rank{self.rank.index}.json"}
        return trace | {"traceEvents": events} | name | tail


def spoil_trace(schedule: Schedule, rank: Rank, trace: Row) -> None:
    """Remove events as the shapes "cut" and "damaged" demand."""
    job, index = schedule.job, rank.index
    events: list[Row] = trace["traceEvents"]
    if job.shape == "cut" and uniform(job.key, "cut kind") < 0.5:
        # the window ended before the GPU had finished: late kernels were never recorded
        share = 0.75 + 0.2 * uniform(job.key, "cut share", index)
        limit = Clock(job, index).span(int(rank.window[0] + share * (rank.window[1] - rank.window[0])), 0)[0]
        late = ("kernel", "gpu_memcpy", "gpu_user_annotation")
        trace["traceEvents"] = [
            e for e in events if e.get("cat") not in late or e["ts"] + e.get("dur", 0) <= limit
        ]
    if job.shape == "damaged":
        chance = 0.01 + 0.08 * uniform(job.key, "damage")
        worse = index == hash_key(job.key, "worse rank") % job.world
        kept = []
        for number, event in enumerate(events):
            collective = event.get("cat") == "kernel" and event["name"].startswith("nccl")
            limit = min(0.5, chance * 4) if worse and collective else chance
            if event["ph"] == "M" or uniform(job.key, "drop", index, number) >= limit:
                kept.append(event)
        trace["traceEvents"] = kept


def write_trace(schedule: Schedule, rank: Rank, folder: Path) -> Path:
    """Write one rank's file and return its path; the same job gives the same bytes."""
    job = schedule.job
    trace = TraceWriter(schedule, rank).build()
    spoil_trace(schedule, rank, trace)
    data = msgspec.json.encode(trace)
    path = folder / (f"rank{rank.index}.json" + (".gz" if job.dialect.gz else ""))
    if job.dialect.gz:
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=1, mtime=0) as stream:
            stream.write(data)
        data = buffer.getvalue()
    if (
        job.shape == "cut"
        and uniform(job.key, "cut kind") >= 0.5
        and (
            uniform(job.key, "cut file", rank.index) < 0.6
            or rank.index == hash_key(job.key, "surely cut") % job.world
        )
    ):
        data = data[: int(len(data) * (0.5 + 0.45 * uniform(job.key, "cut at", rank.index)))]
    path.write_bytes(data)
    return path


def write_traces(schedule: Schedule, folder: Path, ranks: Iterable[int]) -> list[Path]:
    """Write the files of some ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write_trace(schedule, schedule.ranks[index], folder) for index in ranks]
