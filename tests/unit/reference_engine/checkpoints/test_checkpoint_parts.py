"""Boxes tile an interval: in order, without gap or overlap, and each is an interval itself."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.reference_engine.checkpoints.parts import Box, split_into_boxes

shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@settings(max_examples=50)
@given(shape=shapes, data=st.data())
def test_boxes_are_the_elements_of_the_interval_in_order(shape, data):
    numel = math.prod(shape)
    start = data.draw(st.integers(0, numel - 1))
    stop = data.draw(st.integers(start + 1, numel))
    boxes = list(split_into_boxes(shape, start, stop))
    elements = torch.arange(numel).view(shape)
    found = []
    for box in boxes:
        place = tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))
        found += elements[place].flatten().tolist()
    assert found == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    assert all(box.numel > 0 for box in boxes)


def test_an_empty_tensor_is_one_empty_box():
    assert list(split_into_boxes((0, 3), 0, 0)) == [Box(offsets=(0, 0), sizes=(0, 3))]
