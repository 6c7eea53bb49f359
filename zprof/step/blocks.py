"""Find the blocks of the model in a measured step by the kernels that repeat.

A recording may not show where blocks start. The device runs the same kernels for each block, so the kernel
sequence of a pass repeats, and its longest repeating section contains the blocks. The forward and backward
of each micro-batch are searched separately.
"""

from collections.abc import Collection

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.step.structure import find_main_stream
from zprof.step.tasks import NONE, Bools, RankGraph, step_places

#: Minimum kernels per block, and minimum blocks per pass.
_MIN_KERNELS, _MIN_BLOCKS = 3, 2
#: Maximum period, in kernels.
_MAX_KERNELS = 400
#: A shorter period that repeats for nearly as long is the block; the longer one spans several blocks.
_NEARLY_RATIO = 0.9
#: A section that covers a smaller share of the kernels of a micro-batch is not a pass.
_PASS_RATIO = 0.1
_MAX_MICRO_BATCHES = 64
#: A repeat of this many first kernels marks the start of a micro-batch.
_OPENING_KERNELS = 4
#: Micro-batches differ only by gradient accumulation: minimum length of the shortest relative to the longest.
_SIMILAR_RATIO = 0.5
_MAX_PASSES = 2
_COPY_PREFIXES = ("Memcpy", "Memset")


def main_stream_of_rank(rank: RankGraph) -> int:
    """Return the stream with the most compute time, ``NONE`` if there is no compute."""
    return find_main_stream(rank.tasks, rank.collective != NONE)


def is_compute(rank: RankGraph, copies: Collection[str]) -> Bools:
    """Return a mask of the tasks that compute. ``copies`` names kernels that only serve collectives."""
    stream = main_stream_of_rank(rank)
    is_move = rank.tasks.kernel.match(lambda name: name in copies or name.startswith(_COPY_PREFIXES))
    chosen: Bools = (rank.stream == stream) & (rank.collective == NONE) & ~is_move
    return chosen if stream != NONE else np.zeros(len(rank.tasks), dtype=np.bool_)


def find_blocks(rank: RankGraph, copies: Collection[str]) -> Int64s:
    """Return the number of the block pass of each task, ``NONE`` outside of blocks.

    Numbers increase along the tasks. A block has a separate number for each pass.
    """
    found = np.full(len(rank.tasks), NONE, dtype=np.int64)
    kernels, codes = _number_kernels(rank, copies)
    first_of_steps = np.flatnonzero(np.diff(step_places(rank)[kernels])) + 1
    passes: dict[bytes, list[tuple[int, int, int]]] = {}  # most steps and micro-batches run the same kernels
    count = 0
    for mine in np.split(np.arange(len(kernels)), first_of_steps):
        if len(mine) < _MIN_BLOCKS * _MIN_KERNELS:
            continue
        for piece in _split_micro_batches(codes[mine]):
            own_codes = codes[mine[piece]]
            key = own_codes.tobytes()
            if key not in passes:
                passes[key] = _find_passes(own_codes)
            for begin, period, blocks in passes[key]:
                for block in range(blocks):
                    first = begin + block * period
                    found[kernels[mine[piece[first : first + period]]]] = count
                    count += 1
    return found


def _number_kernels(rank: RankGraph, copies: Collection[str]) -> tuple[Int64s, Int64s]:
    """Return the indices of the compute kernels, and a code for the name of each."""
    kernels = np.flatnonzero(is_compute(rank, copies))
    return kernels, rank.tasks.kernel.codes[kernels]


def count_blocks(rank: RankGraph, copies: Collection[str]) -> int:
    """Return the number of blocks of a pass over the model, 0 if its kernels do not repeat."""
    kernels, codes = _number_kernels(rank, copies)
    last = codes[step_places(rank)[kernels] == step_places(rank)[-1]]
    passes = [each for piece in _split_micro_batches(last) for each in _find_passes(last[piece])]
    return max((blocks for _, _, blocks in passes), default=0)


def _split_micro_batches(codes: Int64s) -> list[Int64s]:
    """Split a step at each repeat of its first kernels (the embedding and the first block)."""
    indices = np.arange(len(codes))
    if len(codes) < _OPENING_KERNELS:
        return [indices]
    windows = np.lib.stride_tricks.sliding_window_view(codes, _OPENING_KERNELS)
    starts = np.flatnonzero((windows == windows[0]).all(axis=1))
    lengths = np.diff(starts)
    if not 1 < len(starts) <= _MAX_MICRO_BATCHES or lengths.min() < _SIMILAR_RATIO * lengths.max():
        return [indices]
    return np.split(indices, starts[1:])


def _find_passes(codes: Int64s) -> list[tuple[int, int, int]]:
    """Return for each pass of a micro-batch, in order: start, kernels per block and number of blocks.

    The end of a pass can look like the start of one more block, and the start of a backward like the end of
    one. Therefore the blocks of the first pass are counted from its start, and of the second from its end.
    """
    found: list[tuple[int, int, int]] = []
    is_free = np.ones(len(codes), dtype=np.bool_)
    for _ in range(_MAX_PASSES):
        longest = _find_longest_repeat(codes, is_free)
        if longest is None:
            break
        begin, length, period = longest
        is_free[begin : begin + length] = False
        found.append((begin, length, period))
    found.sort()
    return [
        (begin + (length % period if place else 0), period, length // period)
        for place, (begin, length, period) in enumerate(found)
    ]


def _find_longest_repeat(codes: Int64s, is_free: Bools) -> tuple[int, int, int] | None:
    """Return the start, length and minimum period of the longest repeating section, None if there is none."""
    longest: tuple[int, int, int] | None = None
    # a kernel that is not free equals no other; small numbers compare several times as fast
    codes = np.where(is_free, codes, -1 - np.arange(len(codes))).astype(np.int32)
    min_length, longest_length = _PASS_RATIO * len(codes), 0
    for period in range(_MIN_KERNELS, min(_MAX_KERNELS, len(codes) // _MIN_BLOCKS) + 1):
        same = codes[period:] == codes[:-period]
        # most periods repeat too little even if all equal kernels were in a row
        max_length = int(np.count_nonzero(same)) + period
        if max_length < max(_MIN_BLOCKS * period, min_length) or _NEARLY_RATIO * max_length <= longest_length:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        lengths = edges[1::2] - edges[::2]
        place = int(np.argmax(lengths))
        length = int(lengths[place]) + period
        if length < max(_MIN_BLOCKS * period, min_length):
            continue
        if _NEARLY_RATIO * length > longest_length:
            longest, longest_length = (int(edges[2 * place]), length, period), length
    return longest
