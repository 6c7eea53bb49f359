"""Ranks with a device, written by hand: rows of events and collectives, and the run that they make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from zprof.analysis.columns import Columns
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.schema import COLLECTIVES, EVENTS, MARK
from zprof.run.writer import RankWriter

NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_tn"
HOST_THREAD = 1


@dataclass
class Rows:
    """What one rank did.  Each list grows by the methods, in any order."""

    events: list[dict[str, object]] = field(default_factory=list)
    collectives: list[dict[str, object]] = field(default_factory=list)
    marks: list[tuple[int, str, int, str, int | None, int | None]] = field(default_factory=list)

    def event(self, start: int, end: int, category: str, name: str, **more: object) -> "Rows":
        """Any event."""
        row = {"start_ns": start, "duration_ns": end - start, "category": category, "name": name}
        self.events.append({"thread": HOST_THREAD, "stream": None, "correlation": None} | row | more)
        return self

    def call(self, start: int, correlation: int, name: str = "cudaLaunchKernel") -> "Rows":
        """The host launches something."""
        return self.event(start, start + 1, "cuda_runtime", name, correlation=correlation)

    def kernel(
        self, start: int, end: int, stream: int = 7, correlation: int | None = None, name: str = GEMM
    ) -> "Rows":
        """A kernel that computes."""
        return self.event(start, end, "kernel", name, stream=stream, thread=stream, correlation=correlation)

    def copy(
        self, start: int, end: int, stream: int = 7, correlation: int | None = None, kind: str = "gpu_memcpy"
    ) -> "Rows":
        """A copy or a fill."""
        name = "Memcpy DtoD (Device -> Device)"
        return self.event(start, end, kind, name, stream=stream, thread=stream, correlation=correlation)

    def collective(
        self,
        start: int,
        end: int,
        stream: int = 20,
        correlation: int | None = None,
        *,
        launch: int | None = None,
        name: str = NCCL,
        category: str = "kernel",
        **more: object,
    ) -> "Rows":
        """A collective of the device: the event, and the row that describes it."""
        self.event(start, end, category, name, stream=stream, thread=stream, correlation=correlation)
        return self.described(start, end, stream, launch=launch, **more)

    def described(
        self, start: int, end: int, stream: int | None, *, launch: int | None = None, **more: object
    ) -> "Rows":
        """Only the row of a collective."""
        row = {
            "kind": "all_gather",
            "group": "stream:20",
            "group_size": 0,
            "sequence": len(self.collectives),
            "dtype": "unknown",
            "bytes": 0,
            "start_ns": start,
            "end_ns": end,
            "launch_start_ns": launch,
            "launch_end_ns": launch,
            "wait_start_ns": None,
            "wait_end_ns": None,
            "unit": None,
            "stream": stream,
            "method": "stream_order",
        }
        self.collectives.append(row | more)
        return self

    def step(
        self,
        number: int,
        begin: int,
        end: int,
        name: str = "ProfilerStep",
        cpu_ns: int | None = None,
        queued_ns: int | None = None,
    ) -> "Rows":
        """A step by its marks; the times that the thread of the loop ran in it, and was ready to run."""
        used, queued = ((0, more) if more is not None else (None, None) for more in (cpu_ns, queued_ns))
        self.marks += [
            (begin, "step_begin", number, name, used[0], queued[0]),
            (end, "step_end", number, name, used[1], queued[1]),
        ]
        return self

    def events_table(self) -> pa.Table:
        """As the analysis reads it."""
        names = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
        return _table(self.events, [EVENTS.field(name) for name in names])

    def collectives_table(self) -> pa.Table:
        """All columns of the schema."""
        return _table(self.collectives, [f for f in COLLECTIVES if f.name != "peer_rank"])

    def decomposed(self) -> Columns:
        """The collectives as the analysis has them after decomposition: nobody was late."""
        rows = Columns.from_arrow(self.collectives_table())
        return rows.with_columns(arrival_ns=rows.ints("start_ns"))

    def marks_table(self) -> pa.Table:
        """As the analysis reads it."""
        return _table([dict(zip(MARK.names, mark, strict=True)) for mark in self.marks], list(MARK))


def write_run(
    path: Path,
    ranks: Mapping[int, Rows],
    *,
    world_size: int | None = None,
    source: str = "trace",
    backend: str = "nccl",
    device: str = "cuda",
) -> Path:
    """Write the run of these ranks."""
    manifest = RunManifest(
        zprof_version="0",
        created_ns=0,
        world_size=world_size or len(ranks),
        backend=backend,
        device=device,
        training=TrainingFacts(),
        source=source,
    )
    for rank, rows in ranks.items():
        writer = RankWriter(path, rank, manifest)
        writer.write_table("events", _columns(rows.events_table()))
        writer.write_table("collectives", _columns(rows.collectives_table()))
        writer.write_table("mark", _columns(rows.marks_table()))
        steps = sorted({mark[2] for mark in rows.marks})
        writer.finish(memory_steps=(), time_steps=steps, gaps=(), status="complete")
    return path


def _table(rows: Sequence[Mapping[str, object]], fields: Sequence[pa.Field]) -> pa.Table:
    columns = {f.name: [row[f.name] for row in rows] for f in fields}
    return pa.table(columns, schema=pa.schema(fields))


def _columns(table: pa.Table) -> dict[str, object]:
    return {name: table[name] for name in table.column_names}
