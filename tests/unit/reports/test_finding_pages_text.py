"""Pages of findings: found by id and by name, each with a claim, as text without marks and controls."""

import unicodedata

import pytest

from zprof.model.causes import FINDING_IDS, Cause
from zprof.model.errors import BadInput
from zprof.model.printable import display_width
from zprof.reports.pages import cause_of, claims, page
from zprof.reports.text.finding_list import finding_list
from zprof.reports.text.markdown import as_text

PAGES = [cause for cause, claim in claims().items() if claim]
MARKDOWN = """# ZP999 name

**One *bold* claim,
on two lines.**

## How `code_like_this` is found
1. First item that is long enough to go on in the next line of the terminal, twice as long as that.
2. Second `x * y * z` with a [link](docs/a.md).
   Its second line.

- point

| a | b |
|---|---|
```python
    x = 1  # **not bold**
```
Last.
"""


@pytest.mark.parametrize("name", ["ZP301", "zp301", "straggler_rank", "Straggler-Rank", " straggler rank "])
def test_a_page_is_found(name: str) -> None:
    assert cause_of(name) is Cause.STRAGGLER_RANK


@pytest.mark.parametrize(
    ("name", "near"), [("stragler", "straggler_rank"), ("ZP3O1", "ZP301"), ("prefetch", "no_prefetch")]
)
def test_an_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    with pytest.raises(BadInput) as error:
        cause_of(name)
    assert near in error.value.hint


def test_nonsense_is_refused_without_a_guess() -> None:
    with pytest.raises(BadInput) as error:
        cause_of("x" * 10_000)
    assert len(error.value.message) < 100
    assert "did you mean" not in error.value.hint


def test_pages_are_there() -> None:
    """Those that had a page before the others came."""
    assert {Cause.STRAGGLER_RANK, Cause.NO_PREFETCH, Cause.MEASUREMENT_ARTIFACT} <= set(PAGES)


@pytest.mark.parametrize("cause", PAGES, ids=str)
def test_a_page_as_text(cause: Cause) -> None:
    text = as_text(page(cause))
    assert text.startswith(f"{FINDING_IDS[cause]} {cause.value}\n")
    for heading in ("HOW IT IS FOUND", "WHAT TO CHANGE", "HOW TO DISPROVE IT"):
        assert f"\n{heading}\n" in text
    for line in text.split("\n"):
        assert display_width(line) <= 80, line
        assert "**" not in line
        assert "```" not in line
        assert not [c for c in line if unicodedata.category(c) in {"Cc", "Cf"}], line


def test_markdown() -> None:
    assert as_text(MARKDOWN) == (
        "ZP999 name\n\n"
        "  One bold claim, on two lines.\n\n"
        "HOW CODE_LIKE_THIS IS FOUND\n"
        "  1. First item that is long enough to go on in the next line of the terminal,\n"
        "     twice as long as that.\n"
        "  2. Second x * y * z with a link (docs/a.md). Its second line.\n\n"
        "  - point\n\n"
        "    | a | b |\n"
        "    |---|---|\n\n"
        "        x = 1  # **not bold**\n\n"
        "  Last.\n"
    )


def test_control_characters_of_a_page_are_escaped() -> None:
    assert "\x1b" not in as_text("# a\n\x1b[2J\n```\n\x1b]0;x\x07\n```\n")


def test_the_list_has_all_causes_in_order_of_id() -> None:
    text = finding_list()
    places = [text.index(f"  {identifier}  {cause.value}\n") for cause, identifier in
              sorted(FINDING_IDS.items(), key=lambda item: item[1])]  # fmt: skip
    assert places == sorted(places)
    assert all(display_width(line) <= 80 for line in text.split("\n"))
    assert "\nWAITING\n" in text
