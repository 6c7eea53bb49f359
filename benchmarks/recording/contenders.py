"""Who watches the step: nobody, zprof full and light, torch's MemTracker, torch's profiler.

Each is opened anew for every visit, as in a program, and watches every step until it is closed; what it
does when it opens and closes is outside of the steps, and timed apart.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile

from zprof.collectors.memory.collector import MemoryCollector
from zprof.collectors.memory.mode import MemoryMode

BASE = "base"
FULL, LIGHT = "zprof full", "zprof light"

#: Watches while entered; what it gives is called after each step.
Watch = Callable[[nn.Module, torch.optim.Optimizer], "Iterator[Callable[[], None]]"]


def _nothing() -> None:
    pass


def _nobody(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
    yield _nothing


def _zprof(mode: MemoryMode) -> Watch:
    def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
        collector = MemoryCollector(model, optimizer, mode)
        collector.start()
        try:
            yield _nothing
        finally:
            collector.stop()
        collector.tables()
        faults = [gap for gap in collector.gaps() if "of this window" in gap.what]
        if faults:
            raise RuntimeError(f"the recording failed, its cost says nothing: {faults[0].reason}")

    return watch


def _mem_tracker(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        yield tracker.reset_mod_stats  # it refuses a second step without


def _profiler(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[], None]]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
        yield _nothing


_WATCHES: dict[str, Watch] = {
    BASE: _nobody,
    FULL: _zprof(MemoryMode.FULL),
    LIGHT: _zprof(MemoryMode.LIGHT),
    "torch MemTracker": _mem_tracker,
    "torch profiler, profile_memory": _profiler,
}
NAMES = tuple(_WATCHES)
watching = {name: contextmanager(watch) for name, watch in _WATCHES.items()}
