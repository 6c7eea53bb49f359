"""Brackets outside strings, piece by piece: as one letter after the other finds them, in bounded memory."""

import random
import tracemalloc

import pytest

from zprof.collectors.kineto.reading import structure
from zprof.collectors.kineto.reading.structure import find_brackets


def one_by_one(text, in_string):
    found, escaped = [], False
    for place, letter in enumerate(text.decode()):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
            continue
        elif letter == '"':
            in_string = not in_string
            continue
        if letter in "[]{}" and not in_string:
            found.append(place)
    return found, in_string


@pytest.mark.parametrize("seed", range(8))
def test_any_pieces_find_the_same(seed, monkeypatch):
    draw = random.Random(seed)
    for _ in range(200):
        text = bytearray("".join(draw.choices('"\\\\{}[]a', k=draw.randrange(60))), "ascii")
        monkeypatch.setattr(structure, "_PIECE_BYTES", draw.randrange(1, 12))
        within = draw.random() < 0.5
        found = find_brackets(text, 0, len(text), in_string=within)
        assert (found.position.tolist(), found.in_string) == one_by_one(text, within)
        steps = [1 if chr(text[place]) in "[{" else -1 for place in found.position.tolist()]
        assert found.depth.tolist() == [sum(steps[: n + 1]) for n in range(len(steps))]


@pytest.mark.parametrize("letters", [b"\\", b'\\"', b'"', b'"{"'])
def test_nothing_but_signs_takes_little_memory(letters):
    text = bytearray(letters * ((16 << 20) // len(letters)))
    tracemalloc.start()
    find_brackets(text, 0, len(text))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 * len(text)
