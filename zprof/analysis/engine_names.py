"""Infer the engine of a program that did not declare it from the names of its events."""

import re

from zprof.analysis.time.event_columns import list_names
from zprof.model.training import Engine, TrainingFacts
from zprof.run.reader import Run

#: Names that only this engine writes, most specific engine first: an engine may use parts of a later one.
_NAMES = (
    (
        Engine.DEEPSPEED,
        re.compile(r"(?i)deepspeed|LinearFunctionForZeroStage3|(Pre|Post)BackwardFunction(ForModule|Module)"),
    ),
    (Engine.FSDP2, re.compile(r"^(FSDP|fsdp)::\w+")),
    (Engine.FSDP1, re.compile(r"^FullyShardedDataParallel\b")),
    (Engine.ZERO1, re.compile(r"\bZeroRedundancyOptimizer\b")),
    (
        Engine.DDP,
        re.compile(r"^DistributedDataParallel\b|torch::distributed::reducer::|^torch\.distributed\.ddp"),
    ),
)
_MAX_NAME = 200


def read_declared_engine(facts: TrainingFacts) -> Engine | None:
    """Return the engine that the facts declare, None if they name no known one."""
    engine = facts.engine.lower()
    if engine in (Engine.DDP, Engine.PYTORCH) and facts.stage == 1:
        return Engine.ZERO1
    return Engine(engine) if engine in set(Engine) else None


def find_engine(run: Run) -> Engine | None:
    """Return the declared engine, else the one that the events of the first timed rank name, else None."""
    declared = read_declared_engine(run.manifest.training)
    rank = next((each for each in run.ranks if run.has_table(each, "events")), None)
    if declared is not None or rank is None:
        return declared
    events = run.table(rank, "events", ("name",))
    names = [name[:_MAX_NAME] for name in list_names(events)]
    for engine, pattern in _NAMES:
        if any(pattern.search(name) for name in names):
            return engine
    return None
