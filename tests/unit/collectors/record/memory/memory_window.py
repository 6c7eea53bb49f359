"""Records a window of a small program in this process and gives its tables as lives with tenants."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tests.support.run_tables import table_of
from zprof.analysis.columns import Columns
from zprof.analysis.memory.live_bytes import RankLives, read_rank_lives
from zprof.analysis.memory.tables import read_timeline
from zprof.collectors.record.logs import MarkLog
from zprof.collectors.record.memory.collector import MemoryCollector, Optimizers
from zprof.model.gaps import Gap


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64))


@dataclass
class Window:
    alloc: Columns
    role: Columns
    mark: Columns
    lives: RankLives
    gaps: list[Gap]

    def storages(self) -> Columns:
        """Storages that were made in the window."""
        is_storage = self.alloc.texts("source").equals("storage")
        return self.alloc.at(is_storage & ~self.alloc.bools("before_window"))

    def claimed(self, sub: str) -> Columns:
        """Storages that were claimed as this."""
        generations = self.role.ints("generation")[self.role.texts("sub").equals(sub)]
        return self.alloc.at(np.isin(self.alloc.ints("generation"), generations))


def record(
    body: Callable[[], None],
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    collector: MemoryCollector | None = None,
) -> Window:
    """Run ``body`` as the one step of a memory window."""
    collector = collector or MemoryCollector(model, optimizer)
    marks = MarkLog()
    collector.start()
    marks.add("window_begin", 0, "memory")
    marks.add("step_begin", 0)
    try:
        body()
    finally:
        marks.add("step_end", 0)
        marks.add("window_end", 1, "memory")
        collector.stop()
    return window_of(collector, marks)


def window_of(collector: MemoryCollector, marks: MarkLog) -> Window:
    gaps = collector.gaps()
    tables = collector.tables()
    marks.extend(tables["mark"])
    alloc, role = table_of("alloc", tables["alloc"]), table_of("role", tables["role"])
    mark = table_of("mark", marks.columns())
    timeline = read_timeline(mark)
    assert timeline is not None
    return Window(alloc, role, mark, read_rank_lives(alloc, role, timeline, "cpu"), gaps)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 1) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
