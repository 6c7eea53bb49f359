"""Find causes by how much shorter the measured step is without them.

The other rules look for signs of a cause and then price it. Here the price is the sign: the step of all ranks
is replayed without the effects of a cause (blocking calls, slow launches, one rank's slowness). If it ends
sooner by a share that matters, the cause is present, however it shows in the ledger. A cause that a rule has
found is left to that rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.time import LateReason
from zprof.replay import edits
from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.slow_ranks import find_excess, find_slowest, mark_in_turn, mark_recurring
from zprof.replay.tasks import NONE, Bools
from zprof.rules.compute.blocking_sync import FIX as SYNC_FIX
from zprof.rules.compute.comm_slows_compute import GPU_FIX as SLOWED_FIX
from zprof.rules.compute.cpu_bound_launch import choose_launch_fix
from zprof.rules.compute.data_loader import FIX as LOADER_FIX
from zprof.rules.compute.idle_time import is_inference
from zprof.rules.counterfactual.fixes import (
    ALLOCATES,
    SLOWED_RATIO,
    WAITS,
    WAITS_FOR_EVENT,
    are_calls,
    launch_faster,
    measure_loading_ns,
    measure_slowdown,
    select_gathers,
    start_held_collectives,
)
from zprof.rules.counterfactual.pricing import Replay, are_gathers_late, widen_by_model_error
from zprof.rules.rule import choose_fix, make_finding, rate_severity
from zprof.rules.transfer.compute_blocks_comm import FIX as BLOCKED_FIX
from zprof.rules.transfer.no_prefetch import FIXES as PREFETCH_FIXES
from zprof.rules.waiting.late_ranks import REASON_FIXES as LATE_FIXES
from zprof.rules.waiting.rotating_straggler import STEPS_RATIO

#: Minimum gain, as a share of the step, to name a cause, and to be sure of it.
_MIN_STEP_RATIO, _SURE_RATIO = 0.015, 0.05
#: Minimum gain if the cause itself was seen: ranks that stand out, or this share of a step's collectives.
_SEEN_RATIO, _MANY_RATIO = 0.01, 0.25
#: Minimum share of the steps that show a cause, and of those with the same late rank.
_OFTEN_RATIO, _SAME_RATIO = 0.5, 0.8
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 3
#: With up to this many waits per step, the program reads its loss: a note, unless they cost much.
_USUAL_COUNT = 1.5
#: A copy of some scalars takes microseconds.
_LONG_COPY_NS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A cause that the measured step may have, and the steps without it."""

    cause: Cause
    changed: Sequence[Graph]
    sentence: Callable[[str, str], str]
    fix: str
    disprove: str
    count: float = 0.0
    #: Key and label of the evidence that ``count`` is.
    counted: tuple[str, str] | None = None
    rank: int | None = None
    worth_ratio: float = _MIN_STEP_RATIO


def find_by_replay(analysis: RunAnalysis, replay: Replay, known: Sequence[Finding]) -> list[Finding]:
    """Return findings of causes that no rule found above low confidence, by the gain of removing them."""
    graph = replay.graph
    if graph is None or replay.base_ns is None:
        return []
    named = {each.cause for each in known if each.confidence is not Confidence.LOW}
    found: list[Finding] = []
    for look in (
        _find_late_ranks,
        _find_blocking_calls,
        _find_rate_limit,
        _find_slow_launches,
        _find_slow_loader,
        _find_allocations,
        _find_blocked_collectives,
        _find_late_gathers,
        _find_slowed_compute,
    ):
        judged = [
            _judge_candidate(replay, graph, each) for each in look(analysis, graph) if each.cause not in named
        ]
        found += [one for one in judged if one is not None]
    return found


def _judge_candidate(replay: Replay, graph: Graph, seen: _Candidate) -> Finding | None:
    gains = [gain for changed in seen.changed if (gain := replay.gain_ns(changed)) is not None]
    step = replay.step_ns
    if not gains or max(gains) < seen.worth_ratio * step:
        return None
    low, high = widen_by_model_error(min(gains), max(gains), step)
    share = format_percent(max(gains) / step)
    evidence = [
        Evidence(
            key="replayed_saving",
            what="step without it shorter by, replayed",
            value=max(gains),
            unit="ns",
            rank=seen.rank,
        )
    ]
    if seen.counted:
        key, what = seen.counted
        evidence.append(Evidence(key=key, what=what, value=seen.count, unit="count", rank=seen.rank))
    sure = low >= _SURE_RATIO * step and graph.steps >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    # one step cannot show that anything recurs
    is_note = graph.steps == 1 or (
        seen.cause is Cause.BLOCKING_SYNC and seen.count <= _USUAL_COUNT and low < _SURE_RATIO * step
    )
    return make_finding(
        seen.cause,
        sentence=seen.sentence(format_ns(max(gains)), share),
        evidence=evidence,
        saving_ns=(low, high),
        severity=rate_severity(high, step),
        confidence=Confidence.LOW if is_note else Confidence.HIGH if sure else Confidence.MEDIUM,
        fix=seen.fix,
        disprove=seen.disprove,
    )


def _keep_recurring(rank: RankGraph, steps: int, chosen: Bools) -> Bools:
    """Keep chosen calls if they occur in most of the steps after the first, which carries the start."""
    places = step_places(rank)
    later = {place for place in places[chosen].tolist() if place}
    often = len(later) >= max(1.0, _OFTEN_RATIO * (steps - 1))
    return chosen if often else np.zeros(len(chosen), dtype=np.bool_)


def _awaits_long_copy(rank: RankGraph) -> Bools:
    """Return a mask of the calls that wait for a long copy: the host needs the copied data."""
    on = np.maximum(rank.blocks_on, 0)
    copies = np.array([name.startswith("Memcpy") for name in rank.tasks.kernel], dtype=np.bool_)
    awaits: Bools = (rank.blocks_on != NONE) & copies[on] & (rank.work_ns[on] >= _LONG_COPY_NS)
    return awaits


def _format_times(count: float) -> str:
    return "once" if round(count) == 1 else f"{count:.0f} times"


def _count_per_step(graph: Graph, chosen: Callable[[RankGraph], Bools]) -> float:
    return float(np.mean([chosen(rank).sum() for rank in graph.ranks])) / graph.steps


def _find_blocking_calls(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    def chosen(rank: RankGraph) -> Bools:
        blocks = are_calls(rank, WAITS) & ~are_calls(rank, WAITS_FOR_EVENT) & (rank.blocks_on != NONE)
        return _keep_recurring(rank, graph.steps, blocks & ~_awaits_long_copy(rank))

    count = _count_per_step(graph, chosen)
    if not count or is_inference(analysis):  # a decoder reads each token back
        return []
    return [
        _Candidate(
            cause=Cause.BLOCKING_SYNC,
            changed=[edits.unblock_calls(graph, chosen)],
            sentence=lambda gain, share: (
                f"the host waits for the device {_format_times(count)} per step: "
                f"without these waits a step is {gain} shorter ({share})"
            ),
            fix=SYNC_FIX,
            disprove="torch.cuda.set_sync_debug_mode('error') names the line; take it out and record again: "
            "if the step stays as long, it is not the wait",
            count=count,
            counted=("blocking_calls_per_step", "calls that block until the device is done, per step"),
        )
    ]


def _find_rate_limit(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    def chosen(rank: RankGraph) -> Bools:
        blocks = are_calls(rank, WAITS_FOR_EVENT) & (rank.blocks_on != NONE)
        return _keep_recurring(rank, graph.steps, blocks)

    count = _count_per_step(graph, chosen)
    if not count:
        return []
    return [
        _Candidate(
            cause=Cause.RATE_LIMITED_PREFETCH,
            changed=[edits.unblock_calls(graph, chosen)],
            sentence=lambda gain, share: (
                f"the host waits {_format_times(count)} per step for an event before it "
                f"goes on gathering: without these waits a step is {gain} shorter ({share})"
            ),
            fix="FullyShardedDataParallel(model, limit_all_gathers=False)  # if memory allows; or FSDP2",
            disprove="set limit_all_gathers=False for some steps: if they stay as long, it is not that",
            count=count,
            counted=("event_waits_per_step", "waits for an event, per step"),
        )
    ]


def _find_slow_launches(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    return [
        _Candidate(
            cause=Cause.CPU_BOUND_LAUNCH,
            changed=launch_faster(analysis, graph),
            sentence=lambda gain, share: (
                "the hosts launch later than the devices could start: with launches "
                f"that cost nothing a step is up to {gain} shorter ({share})"
            ),
            fix=choose_launch_fix(analysis),
            disprove="double the micro-batch and record again: kernels take longer, launches do not, so the "
            "idle time of a step stays or shrinks; if it doubles, launching is not the cause",
        )
    ]


def _find_slow_loader(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    loading = measure_loading_ns(analysis, graph)
    if not any((each > 0).any() for each in loading.values()):
        return []
    return [
        _Candidate(
            cause=Cause.DATA_LOADER,
            changed=[edits.shorten_gaps(graph, loading)],
            sentence=lambda gain, share: (
                "the devices wait for batches: with batches that are there when they are "
                f"asked for a step is {gain} shorter ({share})"
            ),
            fix=LOADER_FIX,
            disprove="train on one batch that is kept in memory and record again: if the step stays as long, "
            "the loader is not what it waits for",
        )
    ]


def _find_allocations(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    def chosen(rank: RankGraph) -> Bools:
        return _keep_recurring(rank, graph.steps, are_calls(rank, ALLOCATES))

    count = _count_per_step(graph, chosen)
    if not count:
        return []
    return [
        _Candidate(
            cause=Cause.ALLOCATOR_RETRIES,
            changed=[edits.unblock_calls(graph, chosen)],
            sentence=lambda gain, share: (
                f"the allocator asks the device for memory, or gives it back, {count:.1f} "
                f"times per step: without that a step is {gain} shorter ({share})"
            ),
            fix="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
            "leave room: a smaller micro-batch, fewer units gathered ahead, smaller buckets",
            disprove="leave a tenth of the memory free with a smaller batch and record again: if the "
            "calls stay, the program frees by itself (torch.cuda.empty_cache())",
            count=count,
            counted=("memory_calls_per_step", "calls that take or give back the device's memory, per step"),
        )
    ]


def _find_blocked_collectives(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    count = sum(len(rank.held) for rank in graph.ranks) / len(graph.ranks) / graph.steps
    if not count:
        return []
    return [
        _Candidate(
            cause=Cause.COMPUTE_BLOCKS_COMM,
            changed=start_held_collectives(analysis, graph),
            sentence=lambda gain, share: (
                f"{count:.0f} collectives per step start only when a kernel ends that they do "
                f"not depend on: started at once, a step is {gain} shorter ({share})"
            ),
            fix=BLOCKED_FIX,
            disprove="unset CUDA_DEVICE_MAX_CONNECTIONS, give the communication stream high priority, and "
            "record again: if they still start when a kernel ends, they wait for it on purpose (an event)",
            count=count,
            counted=(
                "blocked_collectives_per_step",
                "collectives that started behind kernels of others, per step",
            ),
            worth_ratio=_SEEN_RATIO
            if count >= _MANY_RATIO * _collectives_per_step(graph)
            else _MIN_STEP_RATIO,
        )
    ]


def _collectives_per_step(graph: Graph) -> float:
    """Return the mean number of collectives per rank and step."""
    return float(np.mean([(rank.collective != NONE).sum() for rank in graph.ranks])) / graph.steps


def _find_late_gathers(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    if not are_gathers_late(analysis, graph):
        return []
    return [
        _Candidate(
            cause=Cause.NO_PREFETCH,
            changed=[edits.launch_earlier(graph, select_gathers(analysis))],
            sentence=lambda gain, share: (
                "all_gathers start when the compute before theirs is done: "
                f"launched one unit earlier, a step is {gain} shorter ({share})"
            ),
            fix=choose_fix(analysis.training.engine, PREFETCH_FIXES),
            disprove="turn prefetch on and record again: if the exposed transfer of all_gathers stays, "
            "the launch is not what delays them",
        )
    ]


def _find_slowed_compute(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    factor = measure_slowdown(analysis, graph)
    if factor <= SLOWED_RATIO:
        return []
    return [
        _Candidate(
            cause=Cause.COMM_SLOWS_COMPUTE,
            changed=[edits.undo_slowdown(graph, factor)],
            sentence=lambda gain, share: (
                f"kernels take {factor:.2f} times as long beside collectives as the same kernels of other "
                f"blocks alone: at that pace a step is {gain} shorter ({share})"
            ),
            fix=SLOWED_FIX,
            disprove="record one step with the collectives launched after the compute (no prefetch, a "
            "synchronisation after each unit): the same kernels must get faster by this factor",
            worth_ratio=_SEEN_RATIO,
        )
    ]


def _find_late_ranks(analysis: RunAnalysis, graph: Graph) -> list[_Candidate]:
    """Return one rank whose steps stand out from the others', and steps in which ranks do so in turn."""
    if len(graph.ranks) < 2 or len(analysis.run.ranks_loaded) < analysis.run.world_size or graph.steps < 2:
        return []
    if not (graph.members > 1).any():  # nothing tells who waits for whom
        return []
    loading = measure_loading_ns(analysis, graph)
    excess = find_excess(graph, loading)
    cells = mark_recurring(excess)
    per_rank = cells[:, 1:].sum(axis=1)
    slowest = int(np.argmax(per_rank))
    numbers = [rank.tasks.rank for rank in graph.ranks]
    found = []
    if cells[slowest].sum() > 1 and per_rank[slowest] >= _SAME_RATIO * (graph.steps - 1):
        number = numbers[slowest]
        found.append(
            _Candidate(
                cause=Cause.STRAGGLER_RANK,
                changed=[edits.even_out_ranks(graph, [number])],
                sentence=lambda gain, share: (
                    f"rank {number} is slower than the others in {per_rank[slowest]} of "
                    f"{graph.steps} steps: at their pace a step is {gain} shorter ({share})"
                ),
                fix=LATE_FIXES[LateReason.COMPUTE],
                disprove="swap the rank's host or device with another's and record again: if the same rank "
                "number is late, it is its work; if the same machine is late, it is the machine",
                count=float(per_rank[slowest]),
                counted=("steps_standing_out", "steps in which it stands out"),
                rank=number,
                worth_ratio=_SEEN_RATIO,
            )
        )
    turns = find_excess(graph, loading, in_turn=True)
    if found:
        turns[slowest] = 0.0
    cells = mark_in_turn(turns)
    latest = find_slowest(np.where(cells, turns, 0.0))
    late = latest != NONE
    if late.mean() >= STEPS_RATIO and len(set(latest[late].tolist())) > 1:
        found.append(
            _Candidate(
                cause=Cause.ROTATING_STRAGGLER,
                changed=[edits.even_out_steps(graph, cells)],
                sentence=lambda gain, share: (
                    f"in {int(late.sum())} of {len(late)} steps another rank is slow "
                    f"by itself: at the pace of the others a step is {gain} shorter ({share})"
                ),
                fix="gc.collect(); gc.freeze(); gc.disable()          # before the loop\n"
                "if step % 500 == 0: gc.collect()                 # in it: on all ranks in the same step",
                disprove="turn the collector off (gc.disable()) and give each rank its own cores, then "
                "record again: if other ranks are late in turn all the same, it is not their hosts",
                count=float(late.sum()),
                counted=("steps_with_slow_rank", "steps with a slow rank"),
                worth_ratio=_SEEN_RATIO,
            )
        )
    return found
