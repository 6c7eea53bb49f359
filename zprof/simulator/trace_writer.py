"""Build the trace of a simulated rank as Kineto writes it with CUPTI, on NVIDIA devices."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Final

from zprof.simulator import kernels
from zprof.simulator import operations as p
from zprof.simulator.job import Job, hash_key, uniform
from zprof.simulator.mesh.layout import MeshGroups
from zprof.simulator.state import Rank, Schedule, Task

Row = dict[str, Any]
_BASE_NS: Final = 1_751_410_836_000_000_000
_WINDOW_NS: Final = 1_428_625_731_000_000
_DTYPES: Final = {2: "BFloat16", 4: "Float"}
C10D: Final = {
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base"),
    "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base"),
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce"),
    "all_to_allv": ("c10d::alltoall_base_", "nccl:all_to_all"),
}
_MESSAGE_CALLS: Final = {"send": "c10d::send", "recv": "c10d::recv_"}
_CBIDS: Final = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMemcpyAsync": 41, "cudaDeviceSynchronize": 165,
    "cudaStreamSynchronize": 131, "cudaEventSynchronize": 137, "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147, "cudaMalloc": 20, "cudaFree": 22,
}  # fmt: skip


class Clock:
    """Convert true times into the times of one rank's file."""

    def __init__(self, job: Job, rank: int) -> None:
        start = job.starts[rank]
        self.drift, self.offset = 1.0 + start.clock_drift, start.clock_offset_ns
        self.integer = job.dialect.era == "old"
        self.based = job.dialect.era == "new" or (job.dialect.era == "mid" and uniform(job.key, "base") < 0.5)
        self.zero = _WINDOW_NS + (hash_key(job.key, "window") % 10**12)
        if not self.based:
            self.zero += _BASE_NS

    @property
    def origin(self) -> int:
        """Return the true clock at the start of the simulation, in ns since 1970."""
        return self.zero + (_BASE_NS if self.based else 0)

    def ns(self, time: int) -> int:
        """Return this rank's clock at a true time."""
        return self.zero + self.offset + round(time * self.drift)

    def span(self, start: int, duration: int) -> tuple[float | int, float | int]:
        """Return `ts` and `dur` in microseconds."""
        begin, end = self.ns(start), self.ns(start + duration)
        if self.integer:
            return begin // 1000, end // 1000 - begin // 1000
        return begin / 1000, (end - begin) / 1000


def get_process(job: Job, rank: int) -> int:
    """Return the process ID of a rank."""
    return 20_000 + hash_key(job.key, "pid", rank) % 900_000


class GroupNames:
    """Names of the process groups, as device meshes create them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.hybrid = job.shard_size < job.world
        """True if the ranks that share parameters are not all ranks."""

    def list_comms(self) -> list[int]:
        """Return the communicators of a rank."""
        comms = [p.WORLD_COMM]
        comms += [p.SHARD_COMM] if self.hybrid else []
        comms += [p.REPLICA_COMM] if self.job.replicas > 1 else []
        return comms + ([p.TENSOR_COMM] if self.job.tensor_size > 1 else [])

    def describe(self, comm: int, rank: int) -> tuple[str, str, list[int]]:
        """Return name, description and members of a communicator of a rank."""
        job, size = self.job, self.job.shard_size
        group = p.find_group(job, comm, rank)
        shards, replicated = job.world // size, size * job.tensor_size
        if comm == p.SHARD_COMM and self.hybrid:
            name, description = str(1 + group), "mesh_dp_shard"
        elif comm == p.REPLICA_COMM:
            name, description = str(1 + shards + group), "mesh_dp_replicate"
        elif comm == p.TENSOR_COMM:
            name, description = str(1 + shards + replicated + group), "mesh_tp"
        else:
            name, description = "0", "default_pg"
        return name, description, list(p.list_members(job, comm, group))


class TraceWriter:
    """Build the trace of one rank; vendors override methods for their differences."""

    first_device = 0
    """The number of a host's first device; on AMD's, processors are counted before."""

    def __init__(self, schedule: Schedule, rank: Rank) -> None:
        self.job = job = schedule.job
        self.rank = rank
        self.clock = Clock(job, rank.index)
        self.dialect = job.dialect
        self.groups = MeshGroups(job.parallel) if job.parallel else GroupNames(job)
        self.device = self.first_device + rank.index % job.cluster.ranks_per_node
        self.pid = get_process(job, rank.index)
        self.tids = (self.pid, self.pid + 700 + hash_key(job.key, "tid", rank.index) % 4000)
        self.streams = self.number_streams()
        self.cpu: list[tuple[int, Row]] = []
        self.gpu: list[Row] = []

    def number_streams(self) -> dict[int, int]:
        """Return the stream numbers; compute runs on the default stream, which is 7 in CUPTI."""
        others = 13 + 4 * (hash_key(self.job.key, "stream") % 4)
        if self.job.parallel:
            return {p.COMPUTE: 7} | {s: others + 4 * s for s in range(1, len(self.rank.streams))}
        return {
            p.COMPUTE: 7, p.COPY_IN: others + 4, p.GATHER: others + 8, p.REDUCE: others + 12,
            p.REPLICA: others + 16, p.WORLD: others + 31, p.NCCL_SHARD: others + 27, p.TENSOR: others + 23,
        }  # fmt: skip

    def metadata(self, comm: int, raw: str, sent: int, got: int, itemsize: int, number: int) -> Row:
        """Return the arguments with which this torch version describes a collective."""
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
        called, args = self.describe_call(name, correlation)
        self.add("cuda_runtime", called, tid, start, duration, {"External id": external, **args})
        if name.startswith("cudaLaunch") or name == "cudaMemcpyAsync":
            self.add_flow("s", correlation, self.pid, self.tids[tid], self.gpu[-1]["ts"])

    def describe_call(self, name: str, correlation: int) -> tuple[str, Row]:
        """Return name and arguments of a runtime call."""
        return name, {"cbid": _CBIDS.get(name, 211), "correlation": correlation}

    def add_host_rows(self) -> None:
        """Append the rows of the host threads."""
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
            elif cat == "message":
                self.add_message_call(row, tid, start, duration, correlation, external)
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
        operator, annotation = C10D[str(raw)]
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

    def add_message_call(
        self,
        row: tuple[int | str, ...],
        tid: int,
        start: int,
        duration: int,
        correlation: int,
        external: int,
    ) -> None:
        """Append the rows of a send or a receive; in a batch, the kernel is launched after all of them."""
        name, (elements, itemsize, number, peer, comm, is_batched) = str(row[1]), map(int, row[8:14])
        plain = {"External id": external - 1, "Record function id": external, "Ev Idx": 0}
        self.add("cpu_op", _MESSAGE_CALLS[name], tid, start, duration, plain)
        args: Row = {"External id": external, "Record function id": external, "Ev Idx": 0}
        if self.dialect.metadata:
            args |= self.describe_peer(comm, name, elements, itemsize, number, peer)
        inner, length = start + min(duration // 8, 4_000), duration - min(duration // 6, 6_000)
        self.add("cpu_op", "record_param_comms", tid, inner, length, args)
        if not is_batched:
            named = {"External id": external + 1, "Record function id": external, "Ev Idx": 0}
            lead = min(length // 5, 9_000)
            title = self.name_message(name, peer, comm)
            self.add("user_annotation", title, tid, inner + lead, length - lead - 1_500, named)
            self.add_runtime("cudaEventRecord", tid, inner + 2_000, 1_400, correlation - 2, external)
            self.add_runtime("cudaStreamWaitEvent", tid, inner + 4_100, 1_300, correlation - 1, external)

    def name_message(self, name: str, peer: int, comm: int) -> str:
        """Return torch's range around a send or a receive, which has the ranks within the group."""
        members = self.groups.describe(comm, self.rank.index)[2]
        arrow = "->" if name == "send" else "<-"
        return f"nccl:{name} {members.index(self.rank.index)}{arrow}{members.index(peer)}"

    def describe_peer(
        self, comm: int, name: str, elements: int, itemsize: int, number: int, peer: int
    ) -> Row:
        """Return the arguments of a send or a receive; the peer is a rank of the job."""
        found = self.metadata(comm, name, elements, elements, itemsize, number)
        place = self.groups.describe(comm, self.rank.index)[2].index(peer)
        return found | {"Rank": place, "Dst Rank" if name == "send" else "Src Rank": peer}

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
                cat = "gpu_memcpy"
                name = self.describe_copy(task, stream, args)
            else:
                cat = "kernel"
                name = self.describe_kernel(task, stream, args)
            self.gpu.append({"ph": "X", "cat": cat, "name": name, "pid": self.device, "tid": stream, "ts": ts,
                             "dur": dur, "args": args})  # fmt: skip
            self.add_flow("f", task.correlation, self.device, stream, ts)

    def describe_copy(self, task: Task, stream: int, args: Row) -> str:
        """Fill in the arguments of a copy and return its name."""
        direction, size = task.info
        args |= {
            "device": self.device, "context": 1, "stream": stream, "correlation": task.correlation,
            "bytes": size, "memory bandwidth (GB/s)": int(size) / max(1, task.end - task.start),
        }  # fmt: skip
        return "Memcpy HtoD (Pinned -> Device)" if direction == "HtoD" else "Memcpy DtoH (Device -> Pinned)"

    def describe_kernel(self, task: Task, stream: int, args: Row) -> str:
        """Fill in the arguments of a kernel and return its name."""
        if task.cat == "collective":
            operation, _, _, got, itemsize = task.info[:5]
            name = kernels.name_collective(str(operation), int(itemsize), self.dialect.era)
            channels = 2 if int(got) < 4096 else 8 + 4 * (hash_key(self.job.key, "channels") % 5)
            grid: tuple[int, ...] = (channels, 1, 1)
            block: tuple[int, ...] = (544, 1, 1)
            registers, shared = 96, 87_568
        else:
            kind = kernels.KINDS[task.kind]
            name, grid, block = kind.name, kind.grid, kind.block
            registers, shared = kind.registers, kind.shared
        blocks = round(grid[0] * grid[1] * grid[2] / self.job.gpu.sms, 6)
        warps = round(blocks * block[0] * block[1] * block[2] / 32, 6)
        args |= {
            "queued": 0, "device": self.device, "context": 1, "stream": stream,
            "correlation": task.correlation, "registers per thread": registers, "shared memory": shared,
            "blocks per SM": blocks,
            "warps per SM": warps, "grid": list(grid), "block": list(block),
            "est. achieved occupancy %": min(100, int(warps * 100 / 64)),
        } | self.describe_message(task)  # fmt: skip
        return name

    def describe_message(self, task: Task) -> Row:
        """Return the metadata of a collective's kernel; nothing for other kernels or older torch versions."""
        if task.cat != "collective" or not self.dialect.metadata:
            return {}
        raw, sent, got, itemsize, number = task.info[1:6]
        if task.parts:
            is_one = len(task.info) > 6 and raw != "coalesced"
            ends = (int(sent), int(itemsize), int(number), int(task.info[6]))
            return self.describe_peer(int(task.info[7]), str(raw), *ends) if is_one else {}
        return self.metadata(task.kind, str(raw), int(sent), int(got), int(itemsize), int(number))

    def add_gpu_annotations(self) -> None:
        """Append the GPU side of annotations: per stream, from the first to the last work launched inside."""
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
            (C10D[str(r[1])][1], int(r[3]), int(r[4]), int(r[6]) + 1)
            for r in self.rank.host_rows
            if r[0] == "collective"
        ]
        ranges += [
            (self.name_message(str(r[1]), int(r[11]), int(r[12])), int(r[3]), int(r[4]), int(r[6]) + 1)
            for r in self.rank.host_rows
            if r[0] == "message" and not r[13]
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
        for device in self.list_devices():
            meta("process_name", device, 0, {"name": "python3"})
            meta("process_labels", device, 0, {"labels": f"GPU {device}"})
            meta("process_sort_index", device, 0, {"sort_index": 5_000_000 + device})
        for pid, tid, name in self.name_threads():
            meta("thread_name", pid, tid, {"name": name})
            meta("thread_sort_index", pid, tid, {"sort_index": tid})
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

    def name_threads(self) -> list[tuple[int, int, str]]:
        """Return process, thread and name of each stream and thread in use."""
        used = {task.stream.name for task in self.rank.tasks if task.stream is not None}
        streams = sorted(self.streams[name] for name in used)
        threads = zip(self.tids, ("pt_main_thread", "pt_autograd_0"), strict=True)
        return [(self.device, stream, f"stream {stream} ") for stream in streams] + [
            (self.pid, tid, f"thread {tid} ({name})") for tid, name in threads
        ]

    def list_devices(self) -> range:
        """Return the numbers of a host's devices."""
        return range(self.first_device, self.first_device + self.job.cluster.ranks_per_node)

    def distributed_info(self) -> Row:
        """Return the description of process groups, in the format of the file's torch version."""
        job, era = self.job, self.dialect.era
        info: Row = {"backend": "nccl", "rank": self.rank.index, "world_size": job.world}
        if era == "old":
            return info
        config = []
        for comm in self.groups.list_comms():
            name, description, ranks = self.groups.describe(comm, self.rank.index)
            entry: Row = {"pg_name": name, "pg_desc": description, "backend_config": "cuda:nccl",
                          "pg_size": len(ranks), "ranks": ranks}  # fmt: skip
            if era == "mid" and not self.dialect.metadata:
                entry["uid"] = entry.pop("pg_desc") and 0
            config.append(entry)
        return info | {"pg_count": len(config), "pg_config": config,
                       "nccl_version": "2.27.5" if era == "new" else "2.20.5"}  # fmt: skip

    def describe_devices(self) -> list[Row]:
        """Return the properties of a host's devices."""
        gpu = self.job.gpu
        return [
            {"id": i, "name": gpu.name, "totalGlobalMem": gpu.memory_bytes, "computeMajor": 9,
             "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
             "regsPerBlock": 65536, "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": gpu.sms,
             "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448,
             "sharedMemPerMultiprocessor": 233472}
            for i in range(self.job.cluster.ranks_per_node)
        ]  # fmt: skip

    def list_versions(self) -> Row:
        """Return the versions of profiler, runtime and driver."""
        return {"cupti_version": 26, "cuda_runtime_version": 12080, "cuda_driver_version": 12090}

    def build(self) -> Row:
        """Return the whole trace."""
        job, dialect = self.job, self.dialect
        trace: Row = {"schemaVersion": 1, "deviceProperties": self.describe_devices()}
        if dialect.era == "new":
            trace |= self.list_versions()
        if dialect.distributed_info:
            trace["distributedInfo"] = self.distributed_info()
        if dialect.host_names:
            trace["host_name"] = f"node-{self.rank.index // job.cluster.ranks_per_node}"
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
