"""No name from a run reaches the terminal with a character that steers it, and texts fit their columns."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memories import HOSTILE
from zprof.base.formatting import display_width, printable, printable_lines, shorten


@settings(max_examples=50)
@given(st.text())
def test_no_character_that_steers_a_terminal_is_left(text: str) -> None:
    for shown in (printable(text), printable(HOSTILE + text)):
        assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        assert len(shown.splitlines()) <= 1


def test_hostile_characters_are_shown_by_their_codes() -> None:
    shown = printable(HOSTILE)
    assert shown.startswith("blocks.0\\x1b[2J")
    assert "\\u202e" in shown
    assert printable_lines("a\nb\x1b") == ["a", "b\\x1b"]


@pytest.mark.parametrize("text", ["blocks.0.mlp", "größe µs", "層.0", "a → b ≤ c █", "e\u0301"])
def test_plain_names_stay(text: str) -> None:
    assert printable(text) == text


@settings(max_examples=50)
@given(st.text(alphabet="ab層\u0301é…", max_size=40), st.integers(0, 30))
def test_shortened_text_fits(text: str, width: int) -> None:
    short = shorten(text, width)
    assert display_width(short) <= width
    assert short == text or short.endswith("…") or width == 0
    assert display_width("層a\u0301") == 3
