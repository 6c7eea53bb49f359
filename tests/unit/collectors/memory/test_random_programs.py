"""Whatever a program does: one tenant a byte, and as many bytes as the allocator's own rows sum to."""

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory_window import Window, record
from random_programs import PLANS, Program

from zprof.analysis.memory.live_bytes import compute_live_curve, read_rank_lives, sum_by_tenant
from zprof.analysis.memory.roles import Segments
from zprof.analysis.memory.tables import UNTAGGED

WITHOUT_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]  # an example costs a window


def count_live_bytes(alloc: pd.DataFrame, begin_ns: int) -> dict[int, int]:
    """Return live bytes after each event: the allocator's blocks, and what tensors held before the window."""
    changes: list[tuple[int, int]] = []
    old: dict[int, tuple[int, int | None]] = {}
    for row in alloc.itertuples():
        freed = None if pd.isna(row.freed_ns) else int(row.freed_ns)
        if row.source == "profiler":
            changes += [(int(row.allocated_ns), int(row.bytes))]
            changes += [] if freed is None else [(freed, -int(row.bytes))]
        elif row.source == "storage" and row.before_window and row.bytes:
            old[int(row.address)] = int(row.bytes), freed
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
    shuffled = window.role.sample(frac=1, random_state=seed)
    again = read_rank_lives(window.alloc, shuffled, timeline, "cpu")
    assert pieces(again.segments) == pieces(segments)


def assert_without_holes(window: Window) -> None:
    blocks, at = window.lives.blocks, dict[int, int]()
    for block, begin_ns, end_ns, *_ in pieces(window.lives.segments):
        assert begin_ns == at.get(block, blocks.begin_ns[block])
        at[block] = end_ns
    lasting = np.flatnonzero(blocks.end_ns > blocks.begin_ns)
    assert at == {int(block): int(blocks.end_ns[block]) for block in lasting}
