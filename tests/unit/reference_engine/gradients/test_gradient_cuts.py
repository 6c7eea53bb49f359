"""The cuts of a flat gradient: nothing is left out, nothing is sent twice, nothing is too large."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.reference_engine.flat_unit import Layout, build_layout
from zprof.reference_engine.gradients.storage import find_runs, round_buffer_elements, split_into_cuts

layouts = st.builds(
    lambda sizes, ranks, alignment: build_layout(
        ((f"p{index}", (size,)) for index, size in enumerate(sizes)), ranks=ranks, alignment=alignment
    ),
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(1, 8),
)


@settings(max_examples=50)
@given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 10_000))
def test_a_buffer_is_the_largest_whole_number_of_aligned_parts(ranks, alignment, limit):
    block = ranks * alignment
    if limit < block:
        with pytest.raises(ValueError, match=f"{limit} .* {block} "):
            round_buffer_elements(limit, ranks=ranks, alignment=alignment)
        return
    elements = round_buffer_elements(limit, ranks=ranks, alignment=alignment)
    assert elements % block == 0
    assert elements <= limit < elements + block


@settings(max_examples=50)
@given(layouts, st.integers(1, 200), st.integers(1, 8))
def test_pieces_cover_every_element_of_every_shard_once(layout: Layout, parts: int, alignment: int):
    limit = round_buffer_elements(parts * layout.ranks * alignment, ranks=layout.ranks, alignment=alignment)
    covered: list[int] = []
    for cut in split_into_cuts(layout.shard_numel, limit // layout.ranks):
        elements = cut.elements * layout.ranks
        assert 0 < elements <= limit
        assert elements % layout.ranks == 0
        for rank in range(layout.ranks):
            start = layout.shard(rank).start
            covered += range(start + cut.first, start + cut.last)
    assert sorted(covered) == list(range(layout.padded))


@settings(max_examples=50)
@given(layouts, st.integers(1, 50))
def test_runs_fill_the_buffer_of_each_piece_in_order_with_the_right_elements(layout: Layout, most: int):
    owner: list[tuple[int, int] | None] = [
        (index, element) for index, slot in enumerate(layout.slots) for element in range(slot.numel)
    ]
    owner += [None] * layout.padding
    for cut in split_into_cuts(layout.shard_numel, most):
        filled: list[tuple[int, int] | None] = []
        for run in find_runs(layout, cut):
            assert run.buffer.first == len(filled)
            assert run.buffer.elements == run.elements.elements > 0
            elements = range(run.elements.first, run.elements.last)
            filled += [None if run.parameter is None else (run.parameter, element) for element in elements]
        expected: list[tuple[int, int] | None] = []
        for rank in range(layout.ranks):
            start = layout.shard(rank).start
            expected += owner[start + cut.first : start + cut.last]
        assert filled == expected
