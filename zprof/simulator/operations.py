"""Define the operations of a host's program, its gathered units, and the writer of single operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from zprof.simulator.job import Block, Job, Kernel, hash_key
from zprof.simulator.mesh.layout import find_mesh_group, list_mesh_members

CPU, LAUNCH, COLLECTIVE, RECORD, WAIT, SYNC, BEGIN, END, MEMCPY, RUNTIME, POINT, MESSAGE = range(12)
MAIN, AUTOGRAD = 0, 1
COMPUTE, COPY_IN, GATHER, REDUCE, REPLICA, WORLD, NCCL_SHARD, TENSOR = range(8)
SHARD_COMM, REPLICA_COMM, WORLD_COMM, TENSOR_COMM = range(4)
DATA_POINT = -1
"""The point of a program at which a rank may wait longer for its data."""
FORWARD, BACKWARD, RECOMPUTE = range(3)

Op = tuple[int | str | bool, ...]
DTYPES: Final = {2: "bfloat16", 4: "float32"}
"""By bytes of an element."""
RAW_NAMES: Final = {
    "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "all_reduce": "allreduce",
    "all_to_all": "all_to_allv",
}  # fmt: skip


def find_group(job: Job, comm: int, rank: int) -> int:
    """Return the number of a rank's group among the communicator's groups.

    The ranks that share a block are innermost, then the shards, then the replicas.
    """
    if job.parallel is not None:
        return find_mesh_group(job.parallel.degrees, comm, rank)
    tensor, outer = job.tensor_size, job.tensor_size * job.shard_size
    if comm == SHARD_COMM:
        return rank // outer * tensor + rank % tensor
    if comm == REPLICA_COMM:
        return rank % outer
    return rank // tensor if comm == TENSOR_COMM else 0


def list_members(job: Job, comm: int, group: int) -> Sequence[int]:
    """Return the ranks of a group."""
    if job.parallel is not None:
        return list_mesh_members(job.parallel.degrees, comm, group)
    tensor, outer = job.tensor_size, job.tensor_size * job.shard_size
    if comm == SHARD_COMM:
        first = group // tensor * outer + group % tensor
        return range(first, first + outer, tensor)
    if comm == REPLICA_COMM:
        return range(group, job.world, outer)
    return range(group * tensor, (group + 1) * tensor) if comm == TENSOR_COMM else range(job.world)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of kernels of one block."""

    block: int
    forward: tuple[int, int]
    backward: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Unit:
    """Blocks that are gathered and reduced together."""

    name: str
    params: int
    segments: tuple[Segment, ...]
    root: bool = False


def wrap_units(job: Job) -> list[Unit]:
    """Return the units in forward order; a root unit, which holds embedding and head, comes first."""
    whole = [Segment(i, (0, len(b.forward)), (0, len(b.backward))) for i, b in enumerate(job.blocks)]
    if job.wrapping == "single":
        return [Unit("", job.params, tuple(whole), root=True)]
    units: list[Unit] = []
    for index, block in enumerate(job.blocks):
        if job.wrapping == "block" or not block.is_layer:
            units.append(Unit(block.name, block.params, (whole[index],)))
        else:
            units += _split_block(job, index, block)
    if job.root_unit:
        first, last = units[0], units[-1]
        root = Unit("", first.params + last.params, first.segments + last.segments, root=True)
        return [root, *units[1:-1]]
    return units


def _split_block(job: Job, index: int, block: Block) -> list[Unit]:
    count = job.fine_pieces
    weights = [0.3 + 1.4 * ((hash_key("piece", index, p) >> 20) % 1000) / 1000 for p in range(count)]
    total = sum(weights)
    forward, backward = len(block.forward), len(block.backward)
    pieces = []
    for p in range(count):
        ahead = (forward * p // count, forward * (p + 1) // count)
        back = (backward * (count - 1 - p) // count, backward * (count - p) // count)
        params = max(1024, int(block.params * weights[p] / total))
        pieces.append(Unit(f"{block.name}.{p}", params, (Segment(index, ahead, back),)))
    return pieces


class OperationList:
    """Collect the operations of a step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ops: list[Op] = []
        self.units = wrap_units(job)
        self.unsharded: set[int] = set()
        self.issued: set[int] = set()
        self.uses: dict[int, int] = {}
        self.compute_done: list[int] = []
        self.tid = MAIN
        self.micro = 0
        self.pending_reduce: list[int] = []
        self.bucket: list[int] = []
        self.serial = 0

    # primitive operations
    def add(self, *op: int | str | bool) -> None:
        """Append an operation."""
        self.ops.append(op)

    def think(self, ns: float, *key: int | str) -> None:
        """Let the host thread spend Python time."""
        self.add(CPU, self.tid, int(ns), hash_key("cpu", *key))

    def open(self, name: str, cat: str = "user_annotation") -> None:
        """Begin a range on the current thread."""
        self.add(BEGIN, self.tid, cat, name)

    def close(self) -> None:
        """End the innermost range of the current thread."""
        self.add(END, self.tid)

    def annotate(self, fsdp2: str, fsdp1: str) -> bool:
        """Begin an annotation in the job's dialect; return True if it has one."""
        name = {"fsdp2": fsdp2, "fsdp1": fsdp1}.get(self.job.dialect.annotations, "")
        if name:
            self.open(name)
        return bool(name)

    def sync_streams(self, waiting: int, awaited: int) -> None:
        """Make a stream wait for all current work of another stream."""
        self.serial += 1
        self.add(RECORD, awaited, self.serial)
        self.add(WAIT, waiting, self.serial)

    def record(self, stream: int, name: str) -> int:
        """Record an event under a stable name and return its id."""
        event = 1_000_000 + hash_key("event", name) % (1 << 40)
        self.add(RECORD, stream, event)
        return event

    def run_kernel(self, stream: int, kind: int, ns: float, *key: int | str) -> None:
        """Launch a kernel outside of the blocks."""
        self.add(LAUNCH, self.tid, stream, kind, max(1500, int(ns)), hash_key("kernel", *key))

    def run_block(self, block: int, which: Sequence[Kernel], span: tuple[int, int], phase: int) -> None:
        """Launch kernels of a block; their keys do not depend on how the model is wrapped."""
        base = (self.micro << 40) | (phase << 32) | (block << 16) | 1 << 60
        self.add(POINT, self.tid, (phase << 16) | block | (self.micro << 20))
        for index in range(*span):
            kernel = which[index]
            self.add(LAUNCH, self.tid, COMPUTE, kernel.kind, kernel.ns, base | index)

    def communicate(
        self, caller: int, comm: int, operation: str, nelems: int, itemsize: int, *key: int | str
    ) -> None:
        """Launch a collective over `nelems` elements; older torch runs it on the communicator's stream."""
        job = self.job
        stream = caller
        if comm == WORLD_COMM and job.shard_size == job.world:
            comm = SHARD_COMM  # the default process group is the shard group
        if job.dialect.one_nccl_stream and comm != REPLICA_COMM:
            stream = {SHARD_COMM: NCCL_SHARD, TENSOR_COMM: TENSOR}.get(comm, WORLD)
            self.sync_streams(stream, caller)
        members = {
            SHARD_COMM: job.shard_size,
            REPLICA_COMM: job.replicas,
            WORLD_COMM: job.world,
            TENSOR_COMM: job.tensor_size,
        }[comm]
        shard = -(-nelems // members)
        sent = shard if operation == "all_gather" else shard * members
        got = shard if operation == "reduce_scatter" else shard * members
        if operation == "all_reduce":
            sent = got = nelems
        self.add(COLLECTIVE, self.tid, stream, comm, operation, RAW_NAMES[operation], sent, got, itemsize,
                 hash_key("collective", *key))  # fmt: skip
        if stream != caller:
            self.sync_streams(caller, stream)

    def read_back(self, what: str, number: int) -> None:
        """Copy a scalar to the host and wait for it (`.item()`).

        On a CPU rank the value is available, unless it is read during a step: then it depends on work in
        flight.
        """
        self.open("aten::item", "cpu_op")
        if not self.job.on_cpu:
            self.add(MEMCPY, self.tid, COMPUTE, "DtoH", 4, 1_600, hash_key("item", what, number))
        if not self.job.on_cpu or self.job.blocking in ("unit", "micro"):
            self.add(SYNC, self.tid, "stream", COMPUTE, "cudaStreamSynchronize")
        self.close()
