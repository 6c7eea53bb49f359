"""Contrast of text on its ground, from the style sheet's own variables, in both themes."""

import re
from importlib import resources

import pytest

CSS = (resources.files("zprof.reports") / "templates/style.css").read_text(encoding="utf-8")
LEAST = 4.5
THEMES = {"light": 0, "dark": 1}
TENANTS = (
    "parameters",
    "gradients",
    "optimizer-state",
    "activations",
    "temporary-buffers",
    "communication-buffers",
    "untagged",
)
SERIES = ("series-a", "series-b", "series-c", "series-d")
PAIRS = [
    *[(text, ground) for text in ("ink", "soft", "link") for ground in ("paper", "raised")],
    *[(mark, ground) for mark in ("good", "bad", "doubt") for ground in ("paper", "raised")],
    *[(f"on-{tenant}", tenant) for tenant in TENANTS],
    *[(f"on-{series}", series) for series in SERIES],
]
DRAWN = (
    *SERIES,
    "compute",
    "exposed-transfer",
    "exposed-wait",
    "exposed-memcpy",
    "idle",
    "unexplained",
    "ink",
)


def colours(theme: str) -> dict[str, str]:
    """The variables of a theme."""
    found = {}
    for name, value in re.findall(r"--([a-z-]+): ([^;]+);", CSS):
        pair = re.fullmatch(r"light-dark\((#\w{6}), (#\w{6})\)", value)
        found[name] = pair[1 + THEMES[theme]] if pair else value
        assert re.fullmatch(r"#[0-9a-f]{6}", found[name]), (name, value)
    return found


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_as_the_standard_says() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read(theme: str, text: str, ground: str) -> None:
    known = colours(theme)
    assert contrast(known[text], known[ground]) >= LEAST


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", DRAWN)
def test_bars_can_be_seen(theme: str, kind: str) -> None:
    known = colours(theme)
    assert contrast(known[kind], known["paper"]) >= 3.0


def test_numbers_of_the_heat_map_can_be_read() -> None:
    steps = re.findall(r"\.heat-(\d) \{ background: (#\w{6}); color: (#\w{6}); \}", CSS)
    assert [int(level) for level, _, _ in steps] == list(range(10))
    assert all(contrast(ground, text) >= LEAST for _, ground, text in steps)
    grounds = [luminance(ground) for _, ground, _ in steps]
    assert grounds == sorted(grounds)


def test_every_class_of_a_drawing_has_a_colour() -> None:
    from zprof.reports.html import LINE_COLOURS
    from zprof.reports.presenters.memory_figures import ORDER, tenant_colour
    from zprof.reports.presenters.time_figures import LEDGER

    for name in ORDER:
        assert f".{tenant_colour(name)} {{ fill" in CSS
        assert f".on-{tenant_colour(name)} {{ fill" in CSS
    for kind in LINE_COLOURS:
        assert f".{kind} {{ fill" in CSS
        assert f".swatch.{kind} {{ background-color" in CSS
    for term, _ in LEDGER:
        assert f".time-{term.removesuffix('_ns').replace('_', '-')} {{ fill" in CSS
