"""Bytes of optimizer state an element, read from the states that an optimizer made in its first step.

K = bytes of states that are as large as their parameter / elements of that parameter; a tensor that is
optimized and no parameter of the model is a master, and counts itself too.  K is known where all optimized
parameters agree on it, and they are all that the model trains.  The 4-byte step counters are counted apart,
where they are on the parameter's device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zprof.collectors.memory.lives.tensors import nested_tensors, plain_tensors

_COUNTER_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """``state_bytes`` is K; None where it is unknown, or not the same for all parameters."""

    state_bytes: int | None = None
    step_counters: int = 0


def optimizer_facts(
    optimizers: Sequence[Any], parameters: Sequence[torch.nn.Parameter], *, partitioned: bool
) -> OptimizerFacts:
    """Facts of all optimizers of a model.

    Args:
        optimizers: After their first step; before it nothing is known.
        parameters: What the model trains.
        partitioned: This rank has the states of a part of the parameters only.
    """
    optimized = {id(tensor): tensor for optimizer in optimizers for tensor in _optimized(optimizer)}
    states = {id(tensor): state for optimizer in optimizers for tensor, state in _states(optimizer)}
    own = {id(parameter) for parameter in parameters}
    has_masters = bool(optimized.keys() - own)
    if not (has_masters or own <= optimized.keys()) or not _has_stepped(optimizers, states):
        return OptimizerFacts()
    sizes: set[int | None] = set()
    counters = 0
    for key, tensor in optimized.items():
        if (has_masters and key in own) or (partitioned and not states.get(key)):
            continue
        elements = _elements(tensor)
        state_bytes, count = _measure(elements, tensor.device, states.get(key))
        counters += count
        if elements:  # a rank may have no part of a small parameter
            sizes.add(_each(state_bytes, elements, 0 if key in own else tensor.element_size()))
    return OptimizerFacts(state_bytes=sizes.pop() if len(sizes) == 1 else None, step_counters=counters)


def _optimized(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in getattr(optimizer, "param_groups", None) or []:
        yield from group["params"]


def _states(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    return iter(list((getattr(optimizer, "state", None) or {}).items()))


def _has_stepped(optimizers: Sequence[Any], states: Mapping[int, Any]) -> bool:
    """Whether states are there; SGD without momentum never has any."""
    return any(states.values()) or all(
        type(optimizer) is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups)
        for optimizer in optimizers
    )


def _elements(tensor: torch.Tensor) -> int:
    return sum(plain.numel() for plain in plain_tensors(tensor))


def _measure(elements: int, device: torch.device, state: Any) -> tuple[int, int]:
    """Bytes of the states that are as large as their parameter, and the number of step counters."""
    state_bytes = counters = 0
    named = state.items() if isinstance(state, dict) else [("", state)]
    for name, tensor in [(name, tensor) for name, value in named for tensor in nested_tensors(value)]:
        if name == "step" or (tensor.numel() == 1 and elements != 1):
            counters += tensor.element_size() == _COUNTER_BYTES and tensor.device.type == device.type
        else:
            state_bytes += tensor.numel() * tensor.element_size()
    return state_bytes, counters


def _each(state_bytes: int, elements: int, own_bytes: int) -> int | None:
    return own_bytes + state_bytes // elements if state_bytes % elements == 0 else None
