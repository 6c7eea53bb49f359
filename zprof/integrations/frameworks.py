"""Share helpers between the bridges to training frameworks."""

from dataclasses import replace
from typing import Any

from zprof.collectors.training import detect_training
from zprof.model.training import TrainingFacts


def missing_framework(package: str, module: str) -> ImportError:
    """Return the error of a bridge whose framework is not installed."""
    return ImportError(f"{module} needs {package}, which is not installed: pip install {package}")


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the innermost optimizer, which steps, from wrappers that keep it as ``optimizer``."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def detect_facts(
    model: Any, optimizers: Any, *, micro_batches: int, data_parallel: bool = False
) -> TrainingFacts:
    """Return the facts that the model shows; ``data_parallel``: the framework hides its DDP wrapper."""
    facts = replace(detect_training(model, optimizers), micro_batches=micro_batches)
    if data_parallel and facts.engine == "pytorch":
        return replace(facts, engine="ddp", stage=0)
    return facts
