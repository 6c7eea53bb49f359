"""Build the trace of a simulated rank without a device: operators and launches, and gloo's executions.

Gloo's executions have no id and no group; a reduce-scatter runs as an all-reduce of the full tensor.
"""

from __future__ import annotations

from typing import Final

from zprof.simulator import operations as p
from zprof.simulator.state import Rank, Schedule, Task
from zprof.simulator.trace_writer import C10D, Row, TraceWriter

_NAMES: Final = {
    "fsdp::all_gather_copy_in": "aten::cat",
    "fsdp::split_with_sizes_copy": "aten::split_with_sizes_copy",
    "fsdp::chunk_cat": "aten::_chunk_cat",
    "aten::_scaled_dot_product_flash_attention": "aten::scaled_dot_product_attention",
}
"""Operators by their names on a device."""
_EXECUTIONS: Final = {
    "all_gather": "gloo:all_gather", "reduce_scatter": "gloo:all_reduce", "all_reduce": "gloo:all_reduce",
}  # fmt: skip
_TYPES: Final = {2: "c10::BFloat16", 4: "float"}


class CpuTraceWriter(TraceWriter):
    """The recording of a rank without a device: no runtime calls, no streams, one thread per group."""

    def __init__(self, schedule: Schedule, rank: Rank) -> None:
        super().__init__(schedule, rank)
        self.workers: dict[int, int] = {}
        """Threads of gloo by communicator."""

    def add(self, cat: str, name: str, tid: int, start: int, duration: int, args: Row) -> None:
        """Append a row of the main thread, which also runs the backward pass."""
        if cat == "cuda_runtime":
            return
        if cat == "wait":
            if not self.dialect.waits:
                return
            cat = "user_annotation"
        for key in ("Sequence number", "Fwd thread id"):
            args.pop(key, None)
        super().add(cat, _NAMES.get(name, name), p.MAIN, start, duration, args)

    def add_runtime(
        self, name: str, tid: int, start: int, duration: int, correlation: int, external: int
    ) -> None:
        """Append nothing: there is no device runtime."""

    def add_sync(
        self, what: str, target: int, start: int, duration: int, correlation: int, external: int
    ) -> None:
        """Append nothing."""

    def add_collective_call(
        self,
        row: tuple[int | str, ...],
        tid: int,
        start: int,
        duration: int,
        correlation: int,
        external: int,
    ) -> None:
        """Append the operator that launches a collective."""
        operation, raw, sent, got, itemsize = row[8:13]
        kind = _TYPES[int(itemsize)]
        is_list = operation == "all_reduce"
        dims = [[[sent]], [], [], [], []] if is_list else [[got], [sent], [], [], []]
        types = ["TensorList", "", "", "", "Scalar"] if is_list else [kind, kind, "", "Scalar", "Scalar"]
        self.add("cpu_op", C10D[str(raw)][0], tid, start, duration, {
            "External id": external, "Record function id": 0,
            "Concrete Inputs": ["", "", "", "True", "-1"], "Input type": types, "Input Dims": dims,
            "Ev Idx": 0,
        })  # fmt: skip

    def add_gpu_rows(self) -> None:
        """Append the executions of collectives on gloo's threads."""
        for task in self.rank.tasks:
            if task.cat == "collective":
                self.add_execution(task)

    def add_execution(self, task: Task) -> None:
        """Append the work of a gloo thread for a collective."""
        operation, _, sent, _, itemsize, _ = task.info
        worker = self.workers.setdefault(task.kind, self.pid + 11 + len(self.workers))
        ts, dur = self.clock.span(task.start, task.end - task.start)
        args = {
            "External id": task.external, "Record function id": 0, "Concrete Inputs": [""],
            "Input type": [_TYPES[int(itemsize)]], "Input Dims": [[sent]], "Ev Idx": 0,
        }  # fmt: skip
        row = {"ph": "X", "cat": "user_annotation", "name": _EXECUTIONS[str(operation)], "pid": self.pid}
        self.gpu.append(row | {"tid": worker, "ts": ts, "dur": dur, "args": args})

    def add_gpu_annotations(self) -> None:
        """Append nothing: there is no device."""

    def list_devices(self) -> range:
        """Return no devices."""
        return range(0)

    def describe_devices(self) -> list[Row]:
        """Return no devices."""
        return []

    def list_versions(self) -> Row:
        """Return no versions."""
        return {}

    def name_threads(self) -> list[tuple[int, int, str]]:
        """Return process, thread and name; a worker keeps a Python thread's name until gloo renames it."""
        threads = [(self.pid, self.pid, f"thread {self.pid} (python3)")]
        for worker in self.workers.values():
            threads.append((self.pid, worker, f"thread {worker} (python3)"))
            threads.append((self.pid, worker, f"thread {worker} (pt_gloo_runloop)"))
        return threads

    def distributed_info(self) -> Row:
        """Return gloo's process groups."""
        info = super().distributed_info()
        info.pop("nccl_version", None)
        config = [entry | {"backend_config": "cpu:gloo,cuda:gloo"} for entry in info.get("pg_config", ())]
        return info | {"backend": "gloo"} | ({"pg_config": config} if config else {})
