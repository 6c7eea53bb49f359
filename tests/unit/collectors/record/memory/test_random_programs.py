"""Whatever a program does: one tenant a byte, and as many bytes as the allocator's own rows sum to."""

from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory_window import Window, record
from random_programs import PLANS, Program

from zprof.analysis.columns import Columns
from zprof.analysis.memory.live_bytes import compute_live_curve, read_rank_lives, sum_by_tenant
from zprof.analysis.memory.roles import Segments
from zprof.analysis.memory.tables import UNTAGGED

WITHOUT_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]  # an example costs a window


def count_live_bytes(alloc: Columns, begin_ns: int) -> dict[int, int]:
    """Return live bytes after each event: the allocator's blocks, and what tensors held before the window."""
    changes: list[tuple[int, int]] = []
    old: dict[int, tuple[int, int | None]] = {}
    names = ("source", "before_window", "address", "bytes", "allocated_ns", "freed_ns")
    for source, before, address, size, allocated, freed in zip(
        *(alloc[name].tolist() for name in names), strict=True
    ):
        if source == "profiler":
            changes += [(allocated, size)]
            changes += [] if freed is None else [(freed, -size)]
        elif source == "storage" and before and size:
            old[address] = size, freed
    for size, freed in old.values():
        changes += [(begin_ns, size)] + ([] if freed is None else [(freed, -size)])
    live, after = 0, {}
    for time_ns, change in sorted(changes):
        live += change
        after[time_ns] = live
    return after


def pieces(segments: Segments) -> list[tuple[Any, ...]]:
    columns = (segments.block, segments.begin_ns, segments.end_ns, segments.tenant, segments.sub)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=15, phases=WITHOUT_SHRINKING)
@given(PLANS, st.integers(0, 1 << 30))
def test_any_program_has_one_tenant_for_each_byte(plan: dict[str, Any], seed: int) -> None:
    program = Program(plan)
    window = record(program.run, program.model, program.optimizer)
    assert window.gaps == []
    blocks, segments, timeline = window.lives.blocks, window.lives.segments, window.lives.timeline
    times, live = compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
    for time_ns, expected in count_live_bytes(window.alloc, timeline.begin_ns).items():
        if timeline.begin_ns <= time_ns <= timeline.end_ns:
            assert live[np.searchsorted(times, time_ns, side="right") - 1] == expected
    for time_ns, size in zip(times.tolist(), live.tolist(), strict=True):
        assert sum_by_tenant(segments, time_ns).sum() == size
    assert_without_holes(window)
    untagged = segments.block[segments.tenant == UNTAGGED]
    inside = untagged[blocks.begin_ns[untagged] > timeline.begin_ns]
    assert [name for name in blocks.operator[inside] if name is not None] == []
    shuffled = window.role.at(np.random.default_rng(seed).permutation(len(window.role)))
    again = read_rank_lives(window.alloc, shuffled, timeline, "cpu")
    assert pieces(again.segments) == pieces(segments)


def assert_without_holes(window: Window) -> None:
    blocks, at = window.lives.blocks, dict[int, int]()
    for block, begin_ns, end_ns, *_ in pieces(window.lives.segments):
        assert begin_ns == at.get(block, blocks.begin_ns[block])
        at[block] = end_ns
    lasting = np.flatnonzero(blocks.end_ns > blocks.begin_ns)
    assert at == {int(block): int(blocks.end_ns[block]) for block in lasting}
