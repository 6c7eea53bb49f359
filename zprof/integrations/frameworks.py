"""Helpers shared by the integrations of training frameworks."""

from typing import Any

from msgspec.structs import replace

from zprof.collectors.training import detect_training
from zprof.model.training import TrainingFacts


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the innermost optimizer from wrappers that hold it as ``optimizer``."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def detect_facts(
    model: Any, optimizers: Any, *, micro_batches: int, data_parallel: bool = False
) -> TrainingFacts:
    """Detect the training facts of a model; ``data_parallel``: the framework hides its DDP wrapper."""
    facts = detect_training(model, optimizers, micro_batches=micro_batches)
    if data_parallel and facts.engine == "pytorch":
        return replace(facts, engine="ddp", stage=0)
    return facts
