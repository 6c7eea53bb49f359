"""Every number on every screen is a leaf of the report, or is made of leaves as it says.

Held against the JSON that ``zprof report -f json`` writes, by a resolver of its own.
"""

import json
import re
from statistics import fmean
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, screen_text, settled
from zprof.model.json_format import to_json as render
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.figures import Aggregation, Figure, Unit
from zprof.tui.session import LoadedRun

#: A figure is rounded to whole nanoseconds or bytes on its way: means of the report may be.
ROUNDING = 1.0


def found(tree: Any, leaf: str) -> list[float]:
    """What stands there in the JSON, unknown numbers left out."""
    nodes = [tree]
    for step in re.findall(r"\w+|\[\*\]|\[\d+\]", leaf):
        if step == "[*]":
            nodes = [child for node in nodes for child in (node.values() if isinstance(node, dict) else node)]
        elif step.startswith("["):
            nodes = [node[int(step[1:-1])] for node in nodes]
        else:
            nodes = [node[step] for node in nodes]
    return [node for node in nodes if node is not None]


def made(tree: Any, figure: Figure) -> float | None:
    """The value that its leaves make, worked out anew."""
    values = [found(tree, leaf) for leaf in figure.leaves]
    flat = [value for group in values for value in group]
    if not flat:
        return None
    if figure.how is Aggregation.DIFFERENCE:
        return sum(values[0]) - sum(sum(group) for group in values[1:])
    if figure.how in (Aggregation.SHARE, Aggregation.PER_WORK):
        return sum(values[0]) / sum(sum(group) for group in values[1:])
    if figure.how is Aggregation.LEAF:
        assert len(flat) == 1, figure
    return {
        Aggregation.MEAN: fmean,
        Aggregation.SUM: sum,
        Aggregation.LARGEST: max,
        Aggregation.SMALLEST: min,
    }.get(figure.how, max)(flat)


def shown_figures(app: ZprofApp) -> list[Figure]:
    """Those of all widgets of the screen that show numbers."""
    widgets = [each for each in app.screen.query("*") if hasattr(each, "shown_figures") and each.display]
    return [figure for widget in widgets for figure in widget.shown_figures()]


def hold(tree: Any, figures: list[Figure]) -> None:
    for figure in figures:
        assert figure.leaves, figure
        expected = made(tree, figure)
        if expected is None:
            assert figure.value is None
        elif figure.unit in (Unit.RATIO, Unit.FACTOR):
            assert figure.value == pytest.approx(expected, abs=1e-9)
        else:
            assert figure.value == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("size", [SMALL, pytest.param(MIDDLE, marks=pytest.mark.slow), LARGE], ids=str)
def test_numbers_are_leaves(loaded: LoadedRun, size: tuple[int, int]) -> None:
    tree = json.loads(render(loaded.report))

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            app.action_show(name)
            await settled(app, pilot)
            figures = shown_figures(app)
            assert figures, name
            hold(tree, figures)
            text = screen_text(app)
            assert any(figure.text in text for figure in figures), text

    play(app_on(loaded), act, size)
