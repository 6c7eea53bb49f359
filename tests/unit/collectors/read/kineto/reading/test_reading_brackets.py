"""Brackets outside of strings, found piece by piece, against a walk over each letter."""

import random

import pytest

from zprof.collectors.read.kineto.reading.structure import find_brackets

PIECES = ["{", "}", "[", "]", "a", '"[{"', '"\\"]"', '"\\\\"', '""']


def walk(text, in_string):
    found, depth, escaped = [], 0, False
    for place, letter in enumerate(text):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == '"':
            in_string = not in_string
        elif letter in "[]{}" and not in_string:
            depth += 1 if letter in "[{" else -1
            found.append((place, depth))
    return found, in_string


@pytest.mark.parametrize(("begin", "within"), [("", False), ('x]"', True)])
def test_a_text_of_several_pieces_has_the_brackets_of_a_walk(begin, within):
    text = begin + "".join(random.Random(1).choices(PIECES, k=1 << 19)) + '"['
    found = find_brackets(bytearray(text.encode()), 0, len(text), in_string=within)
    pairs = list(zip(found.position.tolist(), found.depth.tolist(), strict=True))
    assert (pairs, found.in_string) == walk(text, within)
