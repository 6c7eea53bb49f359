"""The memory side of the report, from what each rank has to say."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from zprof.analysis.law_checks import check_laws, law_gaps
from zprof.analysis.memory.blocks.snapshot import snapshot_memory
from zprof.analysis.memory.leaves.spread import spread_of
from zprof.analysis.memory.live import live_memory
from zprof.analysis.memory.rank.answer import RankAnswer
from zprof.model.gaps import MEMORY, Gap
from zprof.model.memory import Memory, MemoryTimeline, RankMemory
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

#: Ranks whose timelines a report shows: the largest and the smallest peak among them.
_MOST_TIMELINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnalysis:
    """What could be said of memory, and what could not."""

    memory: Memory
    gaps: tuple[Gap, ...]


def analyse_memory(run: Run) -> MemoryAnalysis:
    """Analyse every rank that can be loaded.

    Raises:
        BadInput: a table is damaged.
    """
    if run.manifest.source == "trace" and not any(run.has_table(rank, "alloc") for rank in run.ranks):
        return MemoryAnalysis(memory=Memory(), gaps=(_only_time(),))
    return together(run.manifest.training, [_answer(run, rank) for rank in run.ranks])


def _answer(run: Run, rank: int) -> RankAnswer:
    """A snapshot has an allocator's history and no row of a hook."""
    if run.has_table(rank, "block") and not run.has_table(rank, "alloc"):
        return snapshot_memory(run, rank)
    return live_memory(run, rank)


def _only_time() -> Gap:
    return Gap(
        what=MEMORY,
        reason="a trace has the times of a job and not its memory",
        remedy="zprof record -o RUN -- COMMAND, or a CUDA memory snapshot of the same job",
    )


def together(facts: TrainingFacts, answers: Sequence[RankAnswer]) -> MemoryAnalysis:
    """What the ranks say as one report: their leaves, the laws, and the difference between them."""
    ranks = tuple(memory for answer in answers for memory in answer.per_rank)
    states = tuple(measured for answer in answers for measured in answer.states)
    gaps = [*(gap for answer in answers for gap in answer.gaps), *law_gaps(facts, states)]
    if any(memory.device == "cpu" for memory in ranks):
        gaps.append(_no_device_memory())
    return MemoryAnalysis(
        memory=Memory(
            per_rank=ranks,
            top=tuple(entry for answer in answers for entry in answer.top),
            phases=tuple(entry for answer in answers for entry in answer.phases),
            modules=tuple(entry for answer in answers for entry in answer.modules),
            spread=spread_of(ranks),
            laws=check_laws(facts, states),
            devices=tuple(entry for answer in answers for entry in answer.devices),
            counters=tuple(entry for answer in answers for entry in answer.counters),
            host=tuple(entry for answer in answers for entry in answer.host),
            init=tuple(entry for answer in answers for entry in answer.init),
            timelines=_chosen(ranks, [entry for answer in answers for entry in answer.timelines]),
        ),
        gaps=tuple(gaps),
    )


def _chosen(ranks: Sequence[RankMemory], timelines: Sequence[MemoryTimeline]) -> tuple[MemoryTimeline, ...]:
    """The largest ranks and the smallest, in the order of the ranks."""
    by_size = [memory.rank for memory in sorted(ranks, key=attrgetter("peak_bytes"), reverse=True)]
    if len(by_size) > _MOST_TIMELINES:
        by_size = [*by_size[: _MOST_TIMELINES - 1], by_size[-1]]
    return tuple(timeline for timeline in timelines if timeline.rank in by_size)


def _no_device_memory() -> Gap:
    return Gap(
        what="reserved and non-PyTorch memory",
        reason="the CPU allocator reserves nothing, and no device counter covers this process",
        remedy="record on a GPU",
    )
