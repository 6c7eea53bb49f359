"""Causes of slow steps that a program can be given on purpose, where users have them: ``--plant NAME``.

straggler     rank 1 computes for 40 ms more in the forward of one block
loader        the data set takes 40 ms per batch, on each rank
accumulation  gradients are reduced in each of several micro-batches
host_sync     the mean norm of each block's gradient is reduced and read on the host, within the backward
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from step_truth import note
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

NONE, STRAGGLER, LOADER, ACCUMULATION, HOST_SYNC = "none", "straggler", "loader", "accumulation", "host_sync"
DELAY_S, SLOW_RANK, SLOW_BLOCK, WIDTH = 0.04, 1, 1, 384
#: Micro-batches of a program that accumulates because it was told to reduce each time.
MICRO_BATCHES = 4
#: What a slower device adds to the time of each operator.
SLOWER_RATIO, SHORT_NS = 0.5, 200_000


def add_plant_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plant", default=NONE, choices=[NONE, STRAGGLER, LOADER, ACCUMULATION, HOST_SYNC])


def count_micro_batches(options: argparse.Namespace) -> int:
    """Return the micro-batches that the options ask for; several if they are to be reduced needlessly."""
    planted = MICRO_BATCHES if options.plant == ACCUMULATION else 1
    return max(int(getattr(options, "micro_batches", 1)), planted)


def plant_in_blocks(plant: str, rank: int, blocks: Sequence[nn.Module]) -> None:
    """Register the hooks of a cause that lies in the model. Call it before the blocks are wrapped."""
    if plant == STRAGGLER and rank == SLOW_RANK:
        blocks[SLOW_BLOCK].register_forward_hook(_ExtraWork())
    if plant == HOST_SYNC:
        for block in blocks:
            block.register_full_backward_hook(_NormReader())


class _ExtraWork:
    """Multiplies matrices until the delay is over."""

    def __init__(self) -> None:
        self._matrix, self._product = torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH, WIDTH)

    def __call__(self, *_: object) -> None:
        end = time.perf_counter() + DELAY_S
        with torch.no_grad():
            while time.perf_counter() < end:
                torch.mm(self._matrix, self._matrix, out=self._product)


class _NormReader:
    """Averages a gradient's norm over the ranks and reads it, as a program that logs it does."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, module: nn.Module, inputs: object, outputs: tuple[torch.Tensor, ...]) -> None:
        norm = outputs[0].detach().float().norm()
        dist.all_reduce(norm)
        self.last = norm.item() / dist.get_world_size()


class SlowDevice(TorchDispatchMode):
    """Makes each long operator of torch take half as long again, and notes the time that this adds.

    It sleeps within the operator, so that other ranks keep their processors. A short operator is cheap on any
    device, and no sleep is that short.
    """

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        begin = time.perf_counter_ns()
        output = func(*args, **(kwargs or {}))
        done = time.perf_counter_ns()
        if func.namespace == "aten" and done - begin >= SHORT_NS:
            time.sleep(SLOWER_RATIO * (done - begin) / 1e9)
            note("slower_ns", time.perf_counter_ns() - done)
        return output


class Batches(Dataset[torch.Tensor]):
    """Batches of random vectors, slow to decode if ``plant`` says so."""

    def __init__(self, plant: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._delay_s, self._shape, self._dtype = DELAY_S * (plant == LOADER), shape, dtype

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._delay_s:
            time.sleep(self._delay_s)
        return torch.randn(self._shape, dtype=self._dtype)


def iter_batches(
    plant: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Iterator[torch.Tensor]:
    """Iterate over a loader without workers."""
    return iter(DataLoader(Batches(plant, shape, dtype), batch_size=None))
