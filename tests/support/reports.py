"""Reports for the tests of the faces: each situation once."""

from functools import cache

from msgspec.structs import replace

from tests.support.analyses import Scenario, analysis_of, without_rank
from tests.support.full_memories import by_sizes, full_memory
from tests.support.full_times import traced
from tests.support.memories import memory_of
from zprof.analysis.analysis import RunAnalysis
from zprof.diagnosis.diagnose import diagnose
from zprof.model.memory import Memory
from zprof.model.report import Report

_LINK = 180e6
DDP = replace(
    analysis_of(Scenario(name="ddp", stage=0, bytes_per_s=_LINK, noise_floor_ns=400_000)), memory=memory_of(0)
)
ZERO3 = replace(analysis_of(Scenario(name="zero3", prefetch=False, bytes_per_s=_LINK)), memory=memory_of(3))


@cache
def slower() -> Report:
    """Stage 3 without prefetch against data parallel."""
    return diagnose(ZERO3, DDP)


@cache
def straggler(*, module: str = "", name: str = "run") -> Report:
    """Four ranks, one late; names from the run may be hostile."""
    analysis = analysis_of(Scenario(name=name, ranks=4, delay_ms={2: 40}))
    return diagnose(replace(analysis, memory=memory_of(3, ranks=4, module=module)))


@cache
def rank_missing() -> Report:
    """One of two ranks was killed."""
    return diagnose(without_rank(analysis_of(Scenario()), 1))


@cache
def nothing_timed() -> Report:
    """A run whose time window never opened."""
    return diagnose(untimed(Memory()))


@cache
def memory_only(*, module: str = "blocks.3.mlp") -> Report:
    """All of memory and no time."""
    return diagnose(untimed(full_memory(module)))


@cache
def snapshot() -> Report:
    """A snapshot from elsewhere: tenants by rules."""
    return diagnose(untimed(by_sizes(full_memory()), source="snapshot"))


@cache
def trace() -> Report:
    """A trace from elsewhere: all of time, no memory."""
    return diagnose(traced(analysis_of(Scenario(ranks=2))))


def untimed(memory: Memory, source: str = "recording") -> RunAnalysis:
    """Nothing was timed."""
    analysis = analysis_of(Scenario(ranks=1, steps=1))
    time = replace(analysis.time, per_rank=(), collectives=(), alignment=None)
    run = replace(analysis.run, source=source, steps=(), memory_steps=(2, 3))
    return replace(
        analysis, run=run, time=time, volume=None, steps=analysis.steps.at(slice(0)), memory=memory
    )


SITUATIONS = {
    "slower": slower,
    "straggler": straggler,
    "rank_missing": rank_missing,
    "nothing_timed": nothing_timed,
    "memory_only": memory_only,
    "snapshot": snapshot,
    "trace": trace,
}
