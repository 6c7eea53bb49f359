"""What a checkpoint holds besides the flat units: buffers, and the state of torch's random generators.

Buffers are those of the first rank, whole, the persistent ones as in ``Module.state_dict``.  The generators
of every rank are kept, and given back where the number of ranks is the same; otherwise they stay as they are.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from zprof.reference_engine.checkpoints.parts import Engine, Part


def buffers_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Persistent buffers by name, each once."""
    for prefix, child in module.named_modules():
        for name, buffer in child.named_buffers(prefix=prefix, recurse=False):
            if name.rpartition(".")[2] not in child._non_persistent_buffers_set:
                yield name, buffer


def buffer_parts(buffers: dict[str, torch.Tensor]) -> Iterator[Part]:
    """Whole contiguous tensors."""
    for name, buffer in buffers.items():
        yield Part(key=f"model.{name}", shape=tuple(buffer.shape), start=0, values=buffer.view(-1))


def generator_parts(states: dict[str, torch.Tensor]) -> Iterator[Part]:
    """States of generators, by key."""
    for key, state in states.items():
        yield Part(key=key, shape=tuple(state.shape), start=0, values=state)


def generator_states(engine: Engine, rank: int) -> dict[str, torch.Tensor]:
    """Copies of the state of torch's generators on the CPU and on the parameters' GPU."""
    states = {f"rng.{rank}.cpu": torch.get_rng_state()}
    device = engine.units[0].full.device
    if device.type == "cuda":
        states[f"rng.{rank}.cuda"] = torch.cuda.get_rng_state(device)
    return states


def known_states(states: dict[str, torch.Tensor], metadata: Metadata) -> dict[str, torch.Tensor]:
    """Those that a checkpoint has in this form (another version of torch may have another)."""
    stored = metadata.state_dict_metadata
    return {
        key: state
        for key, state in states.items()
        if isinstance(record := stored.get(key), TensorStorageMetadata) and record.size == state.size()
    }


def set_generators(engine: Engine, states: dict[str, torch.Tensor]) -> None:
    """Give the generators their state."""
    for key, state in states.items():
        if key.endswith(".cuda"):
            torch.cuda.set_rng_state(state, engine.units[0].full.device)
        else:
            torch.set_rng_state(state)
