"""Pages of findings: found by id and by name, each with a claim, as text without marks and controls."""

import unicodedata

import pytest

from zprof.model.errors import BadInput
from zprof.model.findings import FINDING_IDS, Cause
from zprof.model.formatting import display_width
from zprof.reports.finding_pages import cause_of, claims, page
from zprof.reports.formats import page_text
from zprof.reports.presenters.small_pages import finding_list_page
from zprof.reports.terminal import markdown_text

PAGES = [cause for cause, claim in claims().items() if claim]


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


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("cause", PAGES, ids=str)
def test_a_page_markdown_text(cause: Cause, width: int) -> None:
    text = markdown_text(page(cause), width)
    assert text.startswith(f"{FINDING_IDS[cause]} {cause.value}\n")
    for line in text.split("\n"):
        assert display_width(line) <= width, line
        assert "**" not in line
        assert "```" not in line
        assert not [c for c in line if unicodedata.category(c) in {"Cc", "Cf"}], line


def test_colour_is_for_terminals() -> None:
    text = page(PAGES[0])
    assert "\x1b[" in markdown_text(text, colour=True)
    assert "\x1b[" not in markdown_text(text)


def test_control_characters_of_a_page_are_escaped() -> None:
    assert "\x1b" not in markdown_text("# a\n\x1b[2J\n```\n\x1b]0;x\x07\n```\n")


def test_the_list_has_all_causes_in_order_of_id() -> None:
    text = page_text(finding_list_page())
    places = [text.index(f"- {identifier} {cause.value}: ") for cause, identifier in
              sorted(FINDING_IDS.items(), key=lambda item: item[1])]  # fmt: skip
    assert places == sorted(places)
    assert all(display_width(line) <= 80 for line in text.split("\n"))
    assert "\nWAITING\n" in text
