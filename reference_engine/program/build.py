"""The model of a run in the engine, with what is modelled and what is wrong on purpose."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from zprof.reference_engine.activations import block_runner
from zprof.reference_engine.comm.mesh import Mesh
from zprof.reference_engine.engine import ZeroModel, zero
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.gpt import GPT
from zprof.reference_engine.program.host_faults import attach_faults, regather_in_recompute
from zprof.reference_engine.program.in_flight import InFlightComm
from zprof.reference_engine.program.modelled_compute import attach
from zprof.reference_engine.program.train_config import TrainConfig, Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a loop needs; ``begin_step`` is to be called with the number of each step before it."""

    model: ZeroModel
    optimizer: ZeroOptimizer
    begin_step: Callable[[int], None]


def build(config: TrainConfig, mesh: Mesh) -> Built:
    """Make the model and hand it to the engine, on all ranks at once.

    Raises:
        ValueError: the engine cannot handle it; one line says why.
    """
    torch.manual_seed(config.seed)
    run_block = block_runner(config.activations, blocks=config.gpt.layers, mp=mesh.mp)
    module = GPT(config.gpt, mesh.mp, run_block)
    blocks = {f"blocks.{index}": block for index, block in enumerate(module.blocks)}
    begin_step = _model_compute(config, blocks, mesh)
    seen = InFlightComm(mesh.dp) if config.host.sync_each_block else None
    attach_faults(blocks, config.host, seen)
    units = unit_modules(module, config.units)
    model, optimizer = zero(module, config.zero, seen or mesh.dp, units=units, mp=mesh.mp)
    if config.host.regather_in_recompute:
        regather_in_recompute(blocks, model.units)
    return Built(model=model, optimizer=optimizer, begin_step=begin_step)


def unit_modules(model: nn.Module, choice: Units) -> list[nn.Module] | None:
    """The units of the engine; None where its own choice is the one."""
    if choice is Units.BLOCKS:
        return None
    if choice is Units.MODEL:
        return []
    return [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]


def _model_compute(config: TrainConfig, blocks: dict[str, nn.Module], mesh: Mesh) -> Callable[[int], None]:
    if config.compute is None:
        return lambda step: None
    modelled = attach(
        blocks,
        config.compute,
        rank=mesh.dp_index * mesh.mp_size + mesh.mp_index,
        ranks=mesh.dp_size * mesh.mp_size,
        full_length=config.gpt.context,
    )
    return modelled.begin_step
