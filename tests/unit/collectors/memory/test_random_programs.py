"""Whatever a program does: one tenant a byte, and as many bytes as the allocator says.

The allocator's own rows are counted here a second time, one event after the other.
"""

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from memory_window import Window, record
from random_programs import Plan, Program, plans

from zprof.analysis.memory.live_bytes import compute_live_curve, read_rank_lives, sum_by_tenant
from zprof.analysis.memory.roles import Segments
from zprof.analysis.memory.tables import UNTAGGED

#: An example costs a window, and a plan is short enough to read as it is.
EXAMPLES = 20
WITHOUT_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]


def counted(alloc: pd.DataFrame, begin_ns: int) -> dict[int, int]:
    """Live bytes after each event: the allocator's blocks, and what tensors held before the window."""
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


@settings(max_examples=EXAMPLES, phases=WITHOUT_SHRINKING)
@given(plans, st.integers(0, 1 << 30))
def test_whatever_a_program_does(plan: Plan, seed: int) -> None:
    program = Program(plan)
    window = record(program.run, program.model, program.optimizer)
    assert window.gaps == []
    live_bytes_are_those_of_the_allocator(window)
    every_byte_has_one_tenant_at_every_event(window)
    nothing_that_the_window_made_is_untagged(window)
    the_order_of_role_rows_means_nothing(window, seed)


def live_bytes_are_those_of_the_allocator(window: Window) -> None:
    blocks, timeline = window.lives.blocks, window.lives.timeline
    times, live = compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
    after = counted(window.alloc, timeline.begin_ns)
    for time_ns, expected in after.items():
        if timeline.begin_ns <= time_ns <= timeline.end_ns:
            assert live[np.searchsorted(times, time_ns, side="right") - 1] == expected


def every_byte_has_one_tenant_at_every_event(window: Window) -> None:
    blocks, segments = window.lives.blocks, window.lives.segments
    assert (segments.end_ns > segments.begin_ns).all()
    assert ((segments.tenant >= 0) & (segments.tenant <= UNTAGGED)).all()
    at: dict[int, int] = {}
    for block, begin_ns, end_ns, *_ in pieces(segments):
        assert begin_ns == at.get(block, blocks.begin_ns[block])  # neither a hole nor an overlap
        at[block] = end_ns
    lasting = np.flatnonzero(blocks.end_ns > blocks.begin_ns)
    assert at == {int(block): int(blocks.end_ns[block]) for block in lasting}
    times, live = compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
    for time_ns, size in zip(times.tolist(), live.tolist(), strict=True):
        assert sum_by_tenant(segments, time_ns).sum() == size


def nothing_that_the_window_made_is_untagged(window: Window) -> None:
    """Only what nobody claims and what was there before it began."""
    blocks, segments = window.lives.blocks, window.lives.segments
    untagged = segments.block[segments.tenant == UNTAGGED]
    begun = blocks.begin_ns[untagged] > window.lives.timeline.begin_ns
    assert [str(name) for name in blocks.operator[untagged[begun]] if name is not None] == []


def the_order_of_role_rows_means_nothing(window: Window, seed: int) -> None:
    shuffled = window.role.sample(frac=1, random_state=seed)
    again = read_rank_lives(window.alloc, shuffled, window.lives.timeline, "cpu")
    assert pieces(again.segments) == pieces(window.lives.segments)
