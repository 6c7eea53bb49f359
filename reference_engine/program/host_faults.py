"""What a training loop does wrong on the host, on purpose: it stalls, it synchronizes, it fetches twice."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from zprof.reference_engine.program.block_visit import visit
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
    sync_each_block: bool = False
    """Before each block the host reads a value (``.item()``) and waits for all collectives in flight."""
    regather_in_recompute: bool = False
    """Stage 3: a recomputation fetches parameters that are there already."""

    def __post_init__(self) -> None:
        for name in ("data_delay_s", "block_delay_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")


def attach_faults(blocks: Mapping[str, nn.Module], faults: HostFaults, comm: InFlightComm | None) -> None:
    """Let the host misbehave before each block.  Call it before the engine hooks the blocks."""
    if not faults.block_delay_s and comm is None:
        return

    def misbehave(x: torch.Tensor) -> None:
        time.sleep(faults.block_delay_s)
        if comm is not None:
            x.detach().flatten()[0].item()
            comm.wait_all()

    for block in blocks.values():
        visit(block, before_forward=misbehave, before_backward=misbehave)


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
