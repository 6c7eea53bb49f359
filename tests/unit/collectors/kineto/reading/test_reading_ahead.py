"""Reading one piece ahead gives the same text, fails where the text does, and is really ahead."""

import io
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.collectors.kineto.reading.ahead import Ahead


def drained(text: Ahead, size: int) -> bytes:
    target, found = bytearray(size), b""
    while count := text.readinto(memoryview(target)):
        found += target[:count]
    return found


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=300), piece=st.integers(1, 64), size=st.integers(1, 64))
def test_the_text_is_the_same_in_pieces_of_any_size(content: bytes, piece: int, size: int) -> None:
    text = Ahead(io.BytesIO(content), piece)
    assert drained(text, size) == content
    assert text.readinto(memoryview(bytearray(size))) == 0, "the end stays the end"


class Failing(io.BytesIO):
    """Damaged from its third piece on."""

    pieces = 0

    def readinto(self, target: memoryview, /) -> int:  # type: ignore[override]
        self.pieces += 1
        if self.pieces > 2:
            raise EOFError("cut off")
        return super().readinto(target)


def test_what_lies_before_the_damage_is_given_first() -> None:
    text, target = Ahead(Failing(b"0123456789"), 4), bytearray(4)
    found = [bytes(target[: text.readinto(memoryview(target))]) for _ in range(2)]
    assert found == [b"0123", b"4567"]
    for _ in range(2):
        with pytest.raises(EOFError, match="cut off"):
            text.readinto(memoryview(target))


class Watched(io.BytesIO):
    """Says when it is asked for its second piece."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.asked = 0
        self.asked_again = threading.Event()

    def readinto(self, target: memoryview, /) -> int:  # type: ignore[override]
        self.asked += 1
        if self.asked == 2:
            self.asked_again.set()
        return super().readinto(target)


def test_the_next_piece_is_unpacked_before_it_is_asked_for() -> None:
    source = Watched(b"0123456789")
    text = Ahead(source, 4)
    assert text.readinto(memoryview(bytearray(1))) == 1
    assert source.asked_again.wait(timeout=30)
