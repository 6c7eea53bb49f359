"""Records a window of a small program in this process and gives its tables as lives with tenants."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn

from zprof.analysis.memory.live_bytes import RankLives, read_rank_lives
from zprof.analysis.memory.steps_and_phases import read_timeline
from zprof.collectors.logs import MarkLog
from zprof.collectors.memory.collector import MemoryCollector, Optimizers
from zprof.model.gaps import Gap


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64))


@dataclass
class Window:
    alloc: pd.DataFrame
    role: pd.DataFrame
    mark: pd.DataFrame
    lives: RankLives
    gaps: list[Gap]

    def births(self, operator: str) -> pd.DataFrame:
        """Storages that an operator made."""
        names = self.alloc["operator"].astype(object)
        return self.alloc[(self.alloc["source"] == "storage") & (names == operator)]

    def claims(self, generation: int) -> list[tuple[str, str]]:
        rows = self.role[self.role["generation"] == generation]
        return list(zip(rows["tenant"], rows["sub"], strict=True))

    def subs(self, tenant: str) -> set[str]:
        return set(self.role.loc[self.role["tenant"] == tenant, "sub"])


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
    alloc = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in tables["alloc"].items()})
    alloc = alloc.astype({"bytes": "int64", "allocated_ns": "int64", "before_window": bool})
    alloc["freed_ns"] = pd.array(tables["alloc"]["freed_ns"], dtype="Int64")
    role, mark = pd.DataFrame(tables["role"]), pd.DataFrame(marks.columns())
    timeline = read_timeline(mark)
    assert timeline is not None
    return Window(alloc, role, mark, read_rank_lives(alloc, role, timeline, "cpu"), gaps)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 1) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
