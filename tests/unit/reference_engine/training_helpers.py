"""A planted run in one process: its events in order, and what it slept instead of sleeping."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fake_comm import FakeComm

from zprof.reference_engine.comm.collective import Handle
from zprof.reference_engine.comm.mesh import RankMesh
from zprof.reference_engine.program.plants import find_plant
from zprof.reference_engine.program.train_config import TrainConfig, replace_fields
from zprof.reference_engine.train import (
    BuiltProgram,
    build_program,
    iter_micro_batches,
    make_batches,
    train_step,
)

SMALL = {"gpt.hidden": 8, "gpt.heads": 2, "gpt.vocabulary": 16, "gpt.context": 8, "gpt.layers": 3}


class CountingComm(FakeComm):
    """Knows the dtype and the bytes of what it carries, and what is in flight."""

    def __init__(self, world_size: int = 2, rank: int = 0) -> None:
        super().__init__(world_size)
        self.place = rank
        self.carried: list[tuple[str, str, torch.dtype, int]] = []

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        self.carried.append(("all_gather", unit, out.dtype, out.nbytes))
        return super().all_gather(out, shard, unit)

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        self.carried.append(("reduce_scatter", unit, full.dtype, full.nbytes))
        return super().reduce_scatter(out, full, unit)

    def in_flight(self) -> int:
        launched = sum(event.startswith("launch") for event in self.events)
        return launched - sum(event.startswith("wait") for event in self.events)


@dataclass
class Run:
    """A run that goes on step by step; ``sleeps`` are seconds, ``comm.events`` has them in order too."""

    config: TrainConfig
    built: BuiltProgram
    comm: CountingComm
    patch: pytest.MonkeyPatch
    sleeps: list[float] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    done: int = 0

    def steps(self, count: int = 1) -> list[float]:
        self.patch.setattr(time, "sleep", self._sleep)
        self.sleeps.clear()
        self.in_flight.clear()
        self.comm.carried.clear()
        self.comm.take_events()
        steps = range(self.done, self.done + count)
        batches = iter_micro_batches(make_batches(self.config, mesh_of(self.comm)), steps)
        self.done += count
        k = self.config.zero.micro_batches
        return [train_step(self.built, batches, step, micro_batches=k) for step in steps]

    def gathers(self, unit: str) -> int:
        return self.comm.launches("all_gather").count(unit)

    def reductions(self, unit: str) -> int:
        return self.comm.launches("reduce_scatter").count(unit)

    def _sleep(self, seconds: float) -> None:
        if seconds:
            self.sleeps.append(seconds)
            self.in_flight.append(self.comm.in_flight())
            self.comm.events.append(f"sleep {1e3 * seconds:g}")


def mesh_of(comm: CountingComm) -> RankMesh:
    return RankMesh(dp=comm, mp=None, dp_index=comm.place, mp_index=0, dp_size=comm.world_size, mp_size=1)


def started(
    monkeypatch: pytest.MonkeyPatch, config: TrainConfig, *, world_size: int = 2, rank: int = 0
) -> Run:
    """Build the run; one step is made already, so that the order of the units is known."""
    comm = CountingComm(world_size, rank)
    run = Run(config, build_program(config, mesh_of(comm)), comm, monkeypatch)
    run.steps()
    return run


def planted(cause: str, **asked: Any) -> TrainConfig:
    """The plant on a small model; ``zero__stage=3`` asks for a field beside it."""
    return find_plant(cause).apply(TrainConfig(), _fields(cause, asked))


def healthy(cause: str, **asked: Any) -> TrainConfig:
    """The same run without the cause."""
    return replace_fields(TrainConfig(), {**find_plant(cause).base, **_fields(cause, asked)})


def _fields(cause: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    small = {name: value for name, value in SMALL.items() if name not in find_plant(cause).change}
    return small | {name.replace("__", "."): value for name, value in asked.items()}
