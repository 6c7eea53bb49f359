"""Replay the steps of a pipeline with some durations replaced, all steps and replicas at once."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from zprof.analysis.columns import Floats, Mask
from zprof.analysis.slowdown.graph import StepGraph

#: Maximum size of the end times of the replays that run at once.
_MAX_BYTES = 64 << 20
_ZERO = np.zeros((1, 1, 1))


def replay_steps(graph: StepGraph, seconds: Floats, ideal: Floats, keeps: Sequence[Mask]) -> Iterator[Floats]:
    """Yield the length of each step in each replay, in seconds.

    Args:
        graph: The dependencies of the operations.
        seconds: Recorded durations by operation, step and replica.
        ideal: Ideal duration of each operation.
        keeps: For each replay, the operations that keep their recorded durations, by operation and replica;
            all others take their ideal duration.
    """
    at_once = max(1, _MAX_BYTES // (8 * seconds.size))
    for first in range(0, len(keeps), at_once):
        part = np.stack(keeps[first : first + at_once])
        yield from _replay(graph, partial(_choose_kept, part, seconds, ideal), (len(part), seconds.shape[1]))


def _choose_kept(keeps: Mask, seconds: Floats, ideal: Floats, at: int) -> Floats:
    """Return the durations of an operation, by replay, step and replica."""
    kept = keeps[:, at, None, :]
    if kept.all():
        return seconds[at][None]
    return np.where(kept, seconds[at][None], ideal[at]) if kept.any() else ideal[at : at + 1, None, None]


def replay_replicas(graph: StepGraph, seconds: Floats, ideal: Floats) -> Iterator[Floats]:
    """Yield the length of each step if only one replica keeps its recorded durations, for each replica.

    All other replicas are ideal, and therefore equal: each replay has two replicas, its own and an ideal one.
    """
    operations, steps, replicas = seconds.shape
    if replicas == 1:
        yield from replay_steps(graph, seconds, ideal, [np.ones((operations, 1), np.bool_)])
        return
    at_once = max(1, _MAX_BYTES // (16 * operations * steps))
    for first in range(0, replicas, at_once):
        own = seconds[:, :, first : first + at_once]
        yield from _replay(graph, partial(_choose_own, own, ideal), (own.shape[2], steps))


def _choose_own(own: Floats, ideal: Floats, at: int) -> Floats:
    """Return the durations of an operation in one replica and in an ideal one, by replay and step."""
    return np.stack([own[at].T, np.full(own[at].T.shape, ideal[at])], axis=-1)


def replay_ideal(graph: StepGraph, ideal: Floats) -> tuple[Floats, Floats]:
    """Return start and end of each operation of the ideal step in seconds; transfers start with a wait."""
    starts, ends = np.zeros(len(ideal)), np.zeros(len(ideal))
    for node in graph.nodes:
        for at in node.operations:
            starts[at] = max((ends[source] for source in graph.before[at]), default=0.0)
        for at in node.operations:
            ends[at] = max(starts[each] for each in node.operations) + ideal[at]
    return starts, ends


def _replay(graph: StepGraph, choose: Callable[[int], Floats], shape: tuple[int, int]) -> Iterator[Floats]:
    """Yield the length of each step, by replay; ``shape`` is replays x steps.

    End times are replays x steps x replicas; a dimension of 1 stands for equal values.
    """
    ends: list[Floats] = [_ZERO] * len(graph.before)
    for node in graph.nodes:
        begin = _ZERO
        for source in dict.fromkeys(source for at in node.operations for source in graph.before[at]):
            begin = np.maximum(begin, ends[source])
        if node.is_across_replicas:
            begin = begin.max(axis=-1, keepdims=True)
        for at in node.operations:
            ends[at] = begin + choose(at)
    length = np.zeros(shape)
    followed = {source for sources in graph.before for source in sources}
    for at in set(range(len(ends))) - followed:
        np.maximum(length, ends[at].max(axis=-1), out=length)
    yield from length
