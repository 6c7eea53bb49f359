"""Lines, tables and bars in 80 columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.model.printable import display_width
from zprof.reports.text.layout import bar, heading, table, wrap


@given(st.text(alphabet="ab 層…", max_size=400), st.integers(0, 30))
def test_wrapped_text_fits_and_loses_nothing(text: str, indent: int) -> None:
    lines = wrap(text, first=" " * indent)
    assert all(display_width(line) <= 80 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.lists(st.tuples(st.text(alphabet="ab層", max_size=120), st.text("1.", max_size=9)), min_size=1))
def test_table_fits(rows: list[tuple[str, str]]) -> None:
    assert all(display_width(line) <= 80 for line in table(rows))


def test_columns_stand_under_each_other() -> None:
    assert table([["name", "ms"], ["a", "1.5"], ["層", "10.0"]]) == [
        "  name    ms",
        "  a      1.5",
        "  層    10.0",
    ]


@pytest.mark.parametrize(
    ("share", "shown"), [(0, ""), (1, "████"), (0.5, "██"), (0.6, "██▍"), (1e-6, "▏"), (2, "████"), (-1, "")]
)
def test_bar(share: float, shown: str) -> None:
    assert bar(share, 4) == shown


def test_heading_fills_the_line() -> None:
    assert display_width(heading("LEFT", "right")) == 80
