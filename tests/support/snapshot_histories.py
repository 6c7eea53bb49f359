"""Simulated memory histories as the analysis reads them, and one of a small training program.

As on CUDA, the backward of that program has no frames.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.run_tables import table_of
from zprof.analysis.columns import Columns
from zprof.analysis.memory.attribution.assign import attribute_history
from zprof.analysis.memory.attribution.block_tenants import BlockTenants, get_tenant_name
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.history import History, read_history
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.reader import Run
from zprof.run.writer import RankWriter

TORCH = "/venv/lib/python3.11/site-packages/torch/"
Frames = list[dict[str, Any]]


def at(file: str, function: str) -> dict[str, Any]:
    return {"filename": file, "line": 7, "name": function}


MAIN = at("/home/user/train.py", "main")
CALL = at(TORCH + "nn/modules/module.py", "_call_impl")
FORWARD: Frames = [at(TORCH + "nn/functional.py", "linear"), at("/home/user/model.py", "forward"), CALL, MAIN]
WRAPPER = at(TORCH + "optim/optimizer.py", "wrapper")
STEP: Frames = [at(TORCH + "optim/adamw.py", "_multi_tensor_adamw"), WRAPPER, MAIN]
STATE: Frames = [
    at(TORCH + "optim/adam.py", "_init_group"),
    at(TORCH + "optim/adam.py", "step"),
    WRAPPER,
    MAIN,
]
TO_DEVICE: Frames = [
    at(TORCH + "nn/modules/module.py", "convert"),
    at(TORCH + "nn/modules/module.py", "_apply"),
    MAIN,
]
RECOMPUTE: Frames = [
    at(TORCH + "nn/functional.py", "linear"),
    CALL,
    at(TORCH + "utils/checkpoint.py", "recompute_fn"),
    at(TORCH + "utils/checkpoint.py", "unpack_hook"),
]
ALL_GATHER: Frames = [
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "allocate"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", "unshard"),
    CALL,
    MAIN,
]
REDUCE: Frames = [
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", "post_backward"),
    at(TORCH + "distributed/fsdp/_fully_shard/_fsdp_param_group.py", "backward"),
]
BUCKETS: Frames = [
    at(TORCH + "nn/parallel/distributed.py", "_ddp_init_helper"),
    at(TORCH + "nn/parallel/distributed.py", "__init__"),
    MAIN,
]
BARE: Frames = []


@dataclass
class Training:
    """Runs steps; ``last`` has the addresses of the newest blocks by what they truly are."""

    allocator: Allocator = field(default_factory=Allocator)
    fused: bool = False
    last: dict[str, list[int]] = field(default_factory=dict)
    parameters: list[int] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    layers: int = 3

    def alloc(self, size: int, frames: Frames, **more: Any) -> int:
        self.allocator.tick(10)
        return self.allocator.alloc(size, frames=frames, **more)

    def free(self, addresses: list[int]) -> None:
        for address in addresses:
            self.allocator.tick(10)
            self.allocator.free(address)

    def build(self) -> None:
        self.allocator.begin_history()
        self.parameters = [self.alloc(4 * MIB, TO_DEVICE) for _ in range(self.layers)]

    def forward(self) -> list[int]:
        saved = []
        for _ in range(self.layers):
            workspace = self.alloc(2 * MIB, FORWARD)
            saved.append(self.alloc(3 * MIB, FORWARD))
            self.free([workspace])
        self.last["workspace"] = [workspace]
        return saved

    def backward(self, saved: list[int]) -> list[int]:
        gradients = []
        for activation in reversed(saved):
            flowing = self.alloc(3 * MIB, BARE)
            gradients.append(self.alloc(4 * MIB, BARE))
            self.free([flowing, activation])
        self.last["act_grad"] = [flowing]
        return gradients

    def optimize(self) -> None:
        if not self.state:
            self.state = [self.alloc(4 * MIB, STATE) for _ in range(2 * self.layers)]
        if not self.fused:
            temporary = [self.alloc(4 * MIB, STEP) for _ in range(self.layers)]
            self.last["temporary"] = temporary
            self.free(temporary)

    def step(self) -> None:
        saved = self.forward()
        gradients = self.backward(saved)
        self.optimize()
        self.free(gradients)
        self.last |= {"saved": saved, "gradients": gradients}


def entry_times(allocator: Allocator) -> list[int]:
    """When each entry happened: nanoseconds that rise, though the clock counts microseconds."""
    times: list[int] = []
    for entry in allocator.entries:
        times.append(max(entry["time_us"] * 1000, times[-1] + 1 if times else 0))
    return times


def tables_of(*allocators: Allocator) -> dict[str, Columns]:
    tables = convert_snapshot(snapshot_of(*allocators)).tables()
    return {name: table_of(name, columns) for name, columns in tables.items()}


def history(allocator: Allocator) -> History:
    tables = tables_of(allocator)
    found = read_history(tables["block"], tables["segment"], f"cuda:{allocator.device}")
    assert found is not None
    return found


@dataclass(frozen=True)
class Named:
    """The blocks of a history with the tenants that the rules give them."""

    history: History
    names: BlockTenants

    def of(self, address: int) -> tuple[str, str]:
        """(tenant, sub) of the last block at an address."""
        return self.of_row(self.row(address))

    def of_size(self, size: int) -> tuple[str, str]:
        """(tenant, sub) of the first block of a size."""
        return self.of_row(int(np.flatnonzero(self.history.blocks.requested_bytes == size)[0]))

    def of_row(self, row: int) -> tuple[str, str]:
        entry = self.names.get(row)
        return get_tenant_name(entry), entry.sub

    def row(self, address: int) -> int:
        return int(np.flatnonzero(self.history.blocks.address == address)[-1])


def named(allocator: Allocator) -> Named:
    found, stacks = history(allocator), StackIndex(tables_of(allocator)["stack"])
    return Named(found, attribute_history(found.blocks, stacks)[0])


def written(
    path: Path, tables: Mapping[str, Mapping[str, Sequence[Any]]], *, source: str = "recording"
) -> Run:
    """The run of one rank with these tables."""
    manifest = RunManifest(
        zprof_version="0",
        created_ns=0,
        world_size=1,
        backend="nccl",
        device="cuda",
        training=TrainingFacts(),
        source=source,
    )
    writer = RankWriter(path / "r.zprof", 0, manifest)
    for name, columns in tables.items():
        writer.write_table(name, columns)
    writer.finish(memory_steps=[0], time_steps=[], gaps=[], status="complete", memory_mode="full")
    return Run(path / "r.zprof")


def trained(steps: int = 2, *, fused: bool = False) -> "Training":
    """A program that has been built and has run so many steps."""
    program = Training(fused=fused)
    program.build()
    for _ in range(steps):
        program.step()
    return program
