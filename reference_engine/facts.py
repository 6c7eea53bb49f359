"""What the engine knows of itself, for whoever holds a measurement against the laws of ZeRO."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.gradients.assembly import constant_elements
from zprof.reference_engine.units.flat_unit import FlatUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroFacts:
    """Sizes of one engine.  The ``*_bytes`` are per element.

    ``parameters`` are logical elements (the paper's psi), frozen ones included.  ``padding_elements``
    counts over all units and ranks.  ``optimizer_state_bytes`` includes fp32 master weights;
    ``step_counters`` are the optimizer's 4-byte step tensors on each rank.  ``reduce_bytes`` is what a
    gradient has on the wire.  ``constant_buffers`` are elements of one such buffer, None where they have the
    size of the unit.
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
    reduce_bytes: int
    micro_batches: int
    reduces_each_micro_batch: bool
    constant_buffers: int | None
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
        gradient_bytes=config.wire_dtype.itemsize if config.stage >= 2 else element,
        optimizer_state_bytes=8 if config.dtype == torch.float32 else 12,
        communication_bytes=element,
        reduce_bytes=config.wire_dtype.itemsize,
        micro_batches=config.micro_batches,
        reduces_each_micro_batch=config.reduces_each_micro_batch,
        constant_buffers=constant_elements(config, ranks),
        units=tuple(unit.name for unit in units),
    )
