"""The table of a flat unit: parameters without holes, in equal aligned shards."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.reference_engine.flat_layout import FlatLayout, build_layout

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=6)
RANKS = st.integers(1, 9)
ALIGNMENTS = st.integers(1, 17)


def layout(shapes: list[tuple[int, ...]], ranks: int, alignment: int) -> FlatLayout:
    named = [(f"p{index}", shape) for index, shape in enumerate(shapes)]
    return build_layout(named, ranks=ranks, alignment=alignment)


@settings(max_examples=60)
@given(SHAPES, RANKS, ALIGNMENTS)
def test_every_element_is_in_one_place_of_one_of_equal_aligned_shards(shapes, ranks, alignment):
    table = layout(shapes, ranks, alignment)
    end = 0
    for slot, shape in zip(table.slots, shapes, strict=True):
        assert (slot.offset, slot.shape) == (end, shape)
        end += slot.numel
    assert end == table.numel
    assert table.shard_numel * ranks == table.padded == table.numel + table.padding
    assert table.shard_numel % alignment == 0
    assert 0 <= table.padding < ranks * alignment
    offsets = {slot.name: slot.offset for slot in table.slots}
    owners = [0] * table.numel
    for rank in range(ranks):
        start = table.shard(rank).start
        for piece in table.pieces(rank):
            first = offsets[piece.name] + piece.parameter_offset
            assert start + piece.shard_offset == first
            for element in range(first, first + piece.numel):
                owners[element] += 1
    assert owners == [1] * table.numel


@pytest.mark.parametrize(("ranks", "alignment"), [(0, 1), (1, 0)])
def test_no_ranks_or_no_alignment_is_refused(ranks, alignment):
    with pytest.raises(ValueError, match="1 or more"):
        layout([(1,)], ranks, alignment)
