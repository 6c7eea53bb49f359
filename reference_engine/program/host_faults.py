"""What a training loop does wrong on the host, on purpose: it stalls, it synchronizes, it fetches twice."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from zprof.reference_engine import ranges
from zprof.reference_engine.program.block_visit import Visit, visit
from zprof.reference_engine.program.in_flight import InFlightComm
from zprof.reference_engine.units.flat_unit import FlatUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFaults:
    """Faults of the loop; none by default.

    Raises:
        ValueError: a time is negative; the message names it.
    """

    data_delay_s: float = 0.0
    """The data loader takes so long for each micro-batch."""
    block_delay_s: float = 0.0
    """The host takes so long before it starts each block's forward and backward."""
    checkpoint_copy_s: float = 0.0
    """Copying a block's checkpoint to host memory takes so long, and so does the way back."""
    sync_each_block: bool = False
    """Before each block the host reads a value (``.item()``) and waits for all collectives in flight."""
    regather_in_recompute: bool = False
    """Stage 3: a recomputation fetches parameters that are there already."""

    def __post_init__(self) -> None:
        for name in ("data_delay_s", "block_delay_s", "checkpoint_copy_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")


def attach_faults(blocks: Mapping[str, nn.Module], faults: HostFaults, comm: InFlightComm | None) -> None:
    """Let the host misbehave before each block.  Call it before the engine hooks the blocks."""

    def start(x: torch.Tensor) -> None:
        time.sleep(faults.block_delay_s)
        if comm is not None:
            x.detach().flatten()[0].item()
            comm.wait_all()

    for name, block in blocks.items():
        if faults.block_delay_s or comm is not None:
            visit(block, before_forward=start, before_backward=start)
        if faults.checkpoint_copy_s:
            visit(block, before_forward=_copier(name, faults.checkpoint_copy_s))


def _copier(unit: str, seconds: float) -> Visit:
    # Out before the forward and in before the recomputation: the checkpoint is the input of both.
    def copy(x: torch.Tensor) -> None:
        with ranges.copy("checkpoint", unit, x.nbytes):
            time.sleep(seconds)

    return copy


def regather_in_recompute(blocks: Mapping[str, nn.Module], units: Iterable[FlatUnit]) -> None:
    """Let every recomputation release and fetch what is there.  Call it after the engine hooked them."""
    owned = tuple(units)
    for block in blocks.values():
        inside = set(block.parameters())
        _regather(block, [unit for unit in owned if inside.issuperset(unit.parameters)])


def _regather(block: nn.Module, units: list[FlatUnit]) -> None:
    def before_forward(x: torch.Tensor) -> None:
        if torch._C._current_graph_task_id() == -1:
            return  # the forward itself
        for unit in units:
            unit.release()
            unit.gather()
            unit.wait()

    visit(block, before_forward=before_forward)
