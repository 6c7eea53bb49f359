"""Detect engine, stage and element sizes of a training program from its model and optimizers, for programs
that do not declare them.

The bytes of optimizer state per element (K) are measured after the first step: the bytes of the states
that are as large as their parameter, divided by the parameter's elements. An optimized tensor that is not
a parameter of the model is a master copy, and its own bytes are added. K is known only if it is equal for
all optimized parameters and these are all trained parameters of the model. 4-byte step counters are
counted separately, if they are on the parameter's device.

accelerate is never imported here either. Its launcher and the Trainer of transformers pass the
configuration as environment variables, of which accelerate 1.15 reads ``FSDP_FORWARD_PREFETCH`` only for
FSDP1 (verl #6317).
"""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from zprof.collectors.record.engines import deepspeed, torch_engines
from zprof.collectors.record.memory.storages import find_nested_tensors, find_plain_tensors
from zprof.model.training import EngineSetting, Framework, SettingEffect, TrainingFacts

_FRAMEWORK_PACKAGES = ("transformers", "accelerate", "lightning", "pytorch_lightning")
#: Files of frameworks that run the loop, or wrap the optimizer, of a program.
_FRAMEWORK_FILES = (
    ("/transformers/trainer.py", Framework.TRANSFORMERS),
    ("/lightning/pytorch/", Framework.LIGHTNING),
    ("/pytorch_lightning/", Framework.LIGHTNING),
    ("/accelerate/optimizer.py", Framework.ACCELERATE),
    ("/accelerate/accelerator.py", Framework.ACCELERATE),
)
_COUNTER_BYTES = 4
_ACCELERATE_MODULE = "accelerate.utils.dataclasses"
_PLUGIN_CLASS = "FullyShardedDataParallelPlugin"
_PREFETCH_VARIABLE = "FSDP_FORWARD_PREFETCH"
#: What accelerate takes for true.
_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FSDP2 = 2


def detect_training(
    model: nn.Module | None, optimizer: Any = None, *, micro_batches: int = 1
) -> TrainingFacts:
    """Return engine, stage, element sizes and settings of a model; None for unknown facts.

    The size of the optimizer state is known once the optimizer has stepped. The number of parameters is None
    if some are frozen: frozen parameters occupy memory, but have no gradient and are not communicated.
    """
    if model is None:
        return TrainingFacts()
    parameters = list(model.parameters())
    optimizers = (
        () if optimizer is None else optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
    )
    if len(engines := deepspeed.find_engines(model)) == 1:
        facts = deepspeed.detect_facts(engines[0])
        if facts.optimizer_state_bytes is not None or deepspeed.list_masters(engines[0]):
            return facts
        state_bytes, counters = measure_optimizer_state(optimizers, parameters, partitioned=False)
        return replace(facts, optimizer_state_bytes=state_bytes, step_counters=counters)
    if not parameters:
        sharding = (
            "fsdp2" if torch_engines.is_fsdp2(model) else "fsdp1" if torch_engines.is_fsdp1(model) else ""
        )
        return TrainingFacts(engine=sharding or torch_engines.detect_engine(model))
    facts = _read_engine(model, optimizers)
    state_bytes, counters = measure_optimizer_state(
        optimizers,
        [parameter for parameter in parameters if parameter.requires_grad],
        partitioned=facts.stage == 1,
    )
    return replace(
        facts,
        optimizer_state_bytes=state_bytes,
        step_counters=counters,
        micro_batches=micro_batches,
    )


def detect_facts(
    model: Any, optimizers: Any, *, micro_batches: int, data_parallel: bool = False
) -> TrainingFacts:
    """Detect the training facts of a model; ``data_parallel``: the framework hides its DDP wrapper."""
    facts = detect_training(model, optimizers, micro_batches=micro_batches)
    if data_parallel and facts.engine == "pytorch":
        return replace(facts, engine="ddp", stage=0)
    return facts


def _read_engine(model: nn.Module, optimizers: Sequence[Any]) -> TrainingFacts:
    """Return what the engine knows; its size of the optimizer state is measured by the caller."""
    if torch_engines.is_fsdp2(model):
        facts = torch_engines.detect_fsdp2_facts(model)
        return replace(facts, settings=(*facts.settings, *_list_ignored_settings()))
    return (
        torch_engines.detect_fsdp1_facts(model)
        if torch_engines.is_fsdp1(model)
        else torch_engines.detect_ddp_facts(model, optimizers)
    )


def detect_framework() -> Framework | None:
    """Return the outermost framework among the callers of this function, None if the program has none.

    It is called from the program's loop or from a hook of its optimizer. The Trainer of transformers calls
    accelerate, so the outermost one is what the user configures.
    """
    found = None
    frame = sys._getframe(1) if any(name in sys.modules for name in _FRAMEWORK_PACKAGES) else None
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        found = next((each for part, each in _FRAMEWORK_FILES if part in file), found)
        frame = frame.f_back
    return found


def measure_optimizer_state(
    optimizers: Sequence[Any], parameters: Sequence[torch.nn.Parameter], *, partitioned: bool
) -> tuple[int | None, int]:
    """Return K in bytes (None if unknown, or if parameters differ) and the number of step counters.

    Args:
        optimizers: The model's optimizers; nothing is known before their first step.
        parameters: The parameters that the model trains.
        partitioned: True if this rank has the states of only some of the parameters.
    """
    optimized = {
        id(tensor): tensor
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", None) or []
        for tensor in group["params"]
    }
    states = {
        id(tensor): state
        for optimizer in optimizers
        for tensor, state in list((getattr(optimizer, "state", None) or {}).items())
    }
    own = {id(parameter) for parameter in parameters}
    has_masters = bool(optimized.keys() - own)
    # Whether the states exist. SGD without momentum never has any.
    if not (has_masters or own <= optimized.keys()) or not (
        any(states.values())
        or all(
            type(optimizer) is torch.optim.SGD
            and not any(group["momentum"] for group in optimizer.param_groups)
            for optimizer in optimizers
        )
    ):
        return None, 0
    sizes: set[int | None] = set()
    counters = 0
    for key, tensor in optimized.items():
        if (has_masters and key in own) or (partitioned and not states.get(key)):
            continue
        elements = sum(plain.numel() for plain in find_plain_tensors(tensor))
        state_bytes, count = _measure_state(elements, tensor.device, states.get(key))
        counters += count
        if elements:  # a rank may have no shard of a small parameter
            sizes.add(
                (0 if key in own else tensor.element_size()) + state_bytes // elements
                if state_bytes % elements == 0
                else None
            )
    return sizes.pop() if len(sizes) == 1 else None, counters


def _measure_state(elements: int, device: torch.device, state: Any) -> tuple[int, int]:
    """Return the bytes of the states as large as their parameter, and the number of step counters."""
    state_bytes = counters = 0
    named_states = state.items() if isinstance(state, dict) else [("", state)]
    for name, tensor in [
        (name, tensor) for name, value in named_states for tensor in find_nested_tensors(value)
    ]:
        if name == "step" or (tensor.numel() == 1 and elements != 1):
            counters += tensor.element_size() == _COUNTER_BYTES and tensor.device.type == device.type
        else:
            state_bytes += tensor.numel() * tensor.element_size()
    return state_bytes, counters


def _list_ignored_settings() -> Iterator[EngineSetting]:
    """Yield the options that a live FSDP2 configuration of accelerate has and that change nothing."""
    if _ACCELERATE_MODULE not in sys.modules:
        return
    # type(), not isinstance(): access to its ``__class__`` would materialize a lazy proxy.
    plugins = [value for value in gc.get_objects() if type(value).__name__ == _PLUGIN_CLASS]
    from_variable = os.environ.get(_PREFETCH_VARIABLE, "").lower() in _TRUE
    if any(
        from_variable or getattr(plugin, "forward_prefetch", None)
        for plugin in plugins
        if getattr(plugin, "fsdp_version", None) == _FSDP2
    ):
        yield EngineSetting(name="forward_prefetch", value="True", effect=SettingEffect.IGNORED_BY_FSDP2)
