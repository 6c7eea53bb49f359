"""Helpers that the bridges to training frameworks share."""

from dataclasses import replace
from typing import Any

from zprof.collectors.training import detect_training
from zprof.model.training import TrainingFacts


def missing_framework(package: str, module: str) -> ImportError:
    """The error of a bridge whose framework is not there, in one line."""
    return ImportError(f"{module} needs {package}, which is not installed: pip install {package}")


def unwrap_optimizer(optimizer: Any) -> Any:
    """The optimizer that steps, out of what wraps it and keeps it as ``optimizer``."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def detect_facts(
    model: Any, optimizers: Any, *, micro_batches: int, data_parallel: bool = False
) -> TrainingFacts:
    """What can be seen of the model; ``data_parallel``: the framework keeps its DDP wrapper to itself."""
    facts = replace(detect_training(model, optimizers), micro_batches=micro_batches)
    if data_parallel and facts.engine == "pytorch":
        return replace(facts, engine="ddp", stage=0)
    return facts
