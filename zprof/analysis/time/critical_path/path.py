"""The critical path of all steps: how much of it each rank spends with what."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from zprof.analysis.intervals import EMPTY, Intervals, covered, subtract
from zprof.analysis.time.activity.steps import StepWindows
from zprof.analysis.time.blame.host_reasons import CallsOf
from zprof.analysis.time.blame.work import RankWork
from zprof.analysis.time.critical_path.meetings import meetings_of
from zprof.analysis.time.critical_path.walk import Piece, walk
from zprof.model.time import CriticalPath, PathKind, PathSegment, PathShare

_LONGEST = 8


def critical_path(
    frame: pd.DataFrame, work: Mapping[int, RankWork], steps: Mapping[int, StepWindows], calls: CallsOf
) -> CriticalPath | None:
    """The path through all steps that every rank has; None without one.

    Args:
        frame: Collectives of all ranks with their launches, on the common clock.
        work: What each of the ranks did.
        steps: Steps of each rank.
        calls: What the host of a rank did; asked for ranks on the path alone.
    """
    windows = _windows(steps)
    if not windows:
        return None
    meetings = meetings_of(frame)
    blocked = {rank: did.blocked for rank, did in work.items()}
    kinds = _Kinds(work, calls)
    sums: dict[tuple[int, PathKind], int] = defaultdict(int)
    segments: list[PathSegment] = []
    wall = 0
    for step, spans in windows.items():
        last = max(spans, key=lambda rank: spans[rank][1])
        begins = {rank: begin for rank, (begin, _) in spans.items()}
        pieces = walk(last, begins, spans[last][1], blocked, meetings)
        wall += sum(piece.end_ns - piece.begin_ns for piece in pieces)
        segments += [_segment(step, piece, kinds, sums, pieces[-1].begin_ns) for piece in pieces]
    return _summed(sums, segments, wall, len(windows))


def _windows(steps: Mapping[int, StepWindows]) -> dict[int, dict[int, tuple[int, int]]]:
    """By step the begin and end of each rank, where all ranks have it."""
    found: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for rank, windows in steps.items():
        for number, begin, end in zip(
            windows.number.tolist(), windows.begin_ns.tolist(), windows.end_ns.tolist(), strict=True
        ):
            found[number][rank] = (begin, end)
    return {number: spans for number, spans in sorted(found.items()) if len(spans) == len(steps)}


class _Kinds:
    """Says how much of a stretch of a rank's own time was what; reads the host's calls once a rank."""

    def __init__(self, work: Mapping[int, RankWork], calls: CallsOf) -> None:
        self._work = work
        self._calls = calls
        self._sets: dict[int, Sequence[tuple[PathKind, Intervals]]] = {}

    def of(self, piece: Piece) -> dict[PathKind, int]:
        """They sum to the piece; what is nothing else is the host's."""
        whole = piece.end_ns - piece.begin_ns
        if piece.moving:
            return {PathKind.TRANSFER: whole}
        if piece.rank not in self._sets:
            self._sets[piece.rank] = self._disjoint(piece.rank)
        found = {
            kind: int(covered(spans, [piece.begin_ns], [piece.end_ns])[0])
            for kind, spans in self._sets[piece.rank]
        }
        return {**found, PathKind.HOST: whole - sum(found.values())}

    def _disjoint(self, rank: int) -> Sequence[tuple[PathKind, Intervals]]:
        did, host = self._work[rank], self._calls(rank)
        sets, taken = [], EMPTY
        for kind, spans in (
            (PathKind.COMPUTE, did.compute),
            (PathKind.COPIES, did.copies),
            (PathKind.DATA, host.loader),
            (PathKind.ALLOCATOR, host.allocator),
            (PathKind.SYNC, host.sync),
        ):
            free = subtract(spans, taken)
            sets.append((kind, free))
            taken = np.concatenate((taken, free))
        return sets


def _segment(
    step: int, piece: Piece, kinds: _Kinds, sums: dict[tuple[int, PathKind], int], begin_ns: int
) -> PathSegment:
    """The piece by what most of it was; all of it is added to the sums."""
    parts = kinds.of(piece)
    for kind, length in parts.items():
        sums[piece.rank, kind] += length
    return PathSegment(
        step=step,
        rank=piece.rank,
        what=max(parts, key=lambda kind: parts[kind]),
        begin_ns=piece.begin_ns - begin_ns,
        ns=piece.end_ns - piece.begin_ns,
    )


def _summed(
    sums: Mapping[tuple[int, PathKind], int], segments: Sequence[PathSegment], wall: int, steps: int
) -> CriticalPath:
    shares = [PathShare(rank=rank, what=kind, ns=length // steps) for (rank, kind), length in sums.items()]
    longest = sorted(segments, key=lambda segment: (-segment.ns, segment.step, segment.begin_ns))
    return CriticalPath(
        steps=steps,
        wall_ns=wall // steps,
        shares=tuple(sorted((share for share in shares if share.ns > 0), key=_by_size)),
        longest=tuple(longest[:_LONGEST]),
    )


def _by_size(share: PathShare) -> tuple[int, int, str]:
    return (-share.ns, share.rank, share.what)
