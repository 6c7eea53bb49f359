"""What the engine knows of itself, for whoever holds a measurement against the laws of ZeRO."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.units.flat_unit import FlatUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroFacts:
    """Sizes of one engine.  The ``*_bytes`` are per element.

    ``parameters`` are logical elements (the paper's psi), frozen ones included.  ``padding_elements``
    counts over all units and ranks.  ``optimizer_state_bytes`` includes fp32 master weights;
    ``step_counters`` are the optimizer's 4-byte step tensors on each rank.
    """

    engine: str = "zero"
    stage: int
    shard_ranks: int
    parameters: int
    trainable_parameters: int
    padding_elements: int
    step_counters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    communication_bytes: int
    units: tuple[str, ...]


def facts_of(units: Sequence[FlatUnit], config: ZeroConfig, ranks: int) -> ZeroFacts:
    """Sum up the units."""
    element = config.dtype.itemsize
    trainable = [unit for unit in units if unit.trainable]
    return ZeroFacts(
        stage=config.stage,
        shard_ranks=ranks,
        parameters=sum(unit.layout.numel for unit in units),
        trainable_parameters=sum(unit.layout.numel for unit in trainable),
        padding_elements=sum(unit.layout.padding for unit in units),
        step_counters=len(trainable),
        parameter_bytes=element,
        gradient_bytes=element,
        optimizer_state_bytes=8 if config.dtype == torch.float32 else 12,
        communication_bytes=element,
        units=tuple(unit.name for unit in units),
    )
