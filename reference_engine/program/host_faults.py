"""Plant host faults in a run: stalls, blocking synchronization, and unnecessary all-gathers."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.comm import native
from zprof.reference_engine.comm.collective import CollectiveType, Comm, Handle
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.program.modelled_compute import BlockCallback, add_block_callbacks


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFaults:
    """Faults in the training loop; none by default.

    Raises:
        ValueError: a time is negative; the message names it.
    """

    data_delay_s: float = 0.0
    """Delay of the data loader per micro-batch."""
    block_delay_s: float = 0.0
    """Delay of the host before each block's forward and backward."""
    checkpoint_copy_s: float = 0.0
    """Time to copy a block's checkpoint to host memory, and again to copy it back."""
    sync_each_block: bool = False
    """Before each block, the host reads a value (``.item()``) and waits for all collectives in flight."""
    regather_in_recompute: bool = False
    """Stage 3: each recomputation gathers its parameters again although they are gathered already."""

    def __post_init__(self) -> None:
        for name in ("data_delay_s", "block_delay_s", "checkpoint_copy_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")


def attach_faults(blocks: Mapping[str, nn.Module], faults: HostFaults, comm: "InFlightComm | None") -> None:
    """Plant host faults before each block; call it before the engine hooks the blocks."""

    def start(x: torch.Tensor) -> None:
        time.sleep(faults.block_delay_s)
        if comm is not None:
            x.detach().flatten()[0].item()
            comm.wait_all()

    for name, block in blocks.items():
        if faults.block_delay_s or comm is not None:
            add_block_callbacks(block, before_forward=start, before_backward=start)
        if faults.checkpoint_copy_s:
            add_block_callbacks(block, before_forward=_make_copier(name, faults.checkpoint_copy_s))


class InFlightComm:
    """A transport that records the handles of the collectives that ``comm`` launches."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._in_flight: list[Handle] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._comm, name)
        return partial(self._launch, attribute) if name in list(CollectiveType) else attribute

    def wait_all(self) -> None:
        """Wait for all collectives launched so far."""
        in_flight, self._in_flight = self._in_flight, []
        for handle in in_flight:
            handle.wait()

    def _launch(self, collective: Callable[..., Handle], *arguments: Any) -> Handle:
        self._in_flight.append(collective(*arguments))
        return self._in_flight[-1]


def _make_copier(unit: str, seconds: float) -> BlockCallback:
    # The checkpoint is the input of forward and recomputation: copied out before one, back before the other.
    def copy(x: torch.Tensor) -> None:
        with native.copy_range("checkpoint", unit, x.nbytes):
            time.sleep(seconds)

    return copy


def regather_in_recompute(blocks: Mapping[str, nn.Module], units: Iterable[FlatUnit]) -> None:
    """Make every recomputation gather its parameters again; call it after the engine hooked the blocks."""
    all_units = tuple(units)
    for block in blocks.values():
        parameters = set(block.parameters())
        _regather_block(block, [unit for unit in all_units if parameters.issuperset(unit.parameters)])


def _regather_block(block: nn.Module, units: list[FlatUnit]) -> None:
    def before_forward(x: torch.Tensor) -> None:
        if torch._C._current_graph_task_id() == -1:
            return  # the forward itself
        for unit in units:
            unit.release()
            unit.gather()
            unit.wait()

    add_block_callbacks(block, before_forward=before_forward)
