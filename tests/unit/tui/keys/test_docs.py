"""docs/tui.md has the keys of now."""

from tests.support.tui_docs import PAGE, with_keys


def test_the_page_has_all_keys() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_keys(text), "python -m tests.support.tui_docs writes them"
