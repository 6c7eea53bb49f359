"""Numbers of a screen: leaves of the report and what is made of them, and how they read."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, SMALL, app_on, play, screen_text, settle
from tests.support.tui_leaves import assert_leaves, read_leaves
from zprof.model.cursor import Cursor, combine, read_range
from zprof.model.json_format import to_json
from zprof.model.quantities import UNKNOWN, Aggregation, Bound, Unit, Value, parse_path
from zprof.reports.table import Table
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.help_texts import get_export
from zprof.tui.opening import TablePopup, explain_number, open_row
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable

TREE = {
    "time": {
        "per_rank": [
            {"rank": 0, "wall_ns": 4_000_000, "compute_ns": 1_000_000, "overlap_ratio": None},
            {"rank": 1, "wall_ns": 6_000_000, "compute_ns": 3_000_000, "overlap_ratio": 0.25},
        ]
    },
    "tenants": {"parameters": 1024, "gradients": 2048},
    "saving_ns": [31_900_000, 125_800_000],
    "small": [800_000, 1_200_000],
    "none": [None, None],
    "name": "7",
    "bound": True,
}
WALLS = "time.per_rank[*].wall_ns"


@pytest.mark.parametrize(
    ("leaf", "values"),
    [
        ("time.per_rank[1].wall_ns", [6_000_000]),
        (WALLS, [4_000_000, 6_000_000]),
        ("tenants[*]", [1024, 2048]),
        ("time.per_rank[0].overlap_ratio", [None]),
        ("time.per_rank[2].wall_ns", [None]),
        ("time.nothing", [None]),
        ("name", [None]),
        ("bound", [None]),
    ],
)
def test_a_path_leads_to_numbers(leaf: str, values: list[float | None]) -> None:
    every = read_leaves(TREE, leaf, how=Aggregation.SUM).number
    assert every == (None if values == [None] else sum(value for value in values if value))


@pytest.mark.parametrize(
    ("how", "leaves", "value"),
    [
        (Aggregation.MEAN, [WALLS], 5_000_000),
        (Aggregation.SUM, [WALLS], 10_000_000),
        (Aggregation.LARGEST, [WALLS], 6_000_000),
        (Aggregation.SMALLEST, [WALLS], 4_000_000),
        (Aggregation.DIFFERENCE, ["time.per_rank[1].wall_ns", "time.per_rank[0].wall_ns"], 2_000_000),
        (Aggregation.SHARE, ["time.per_rank[*].compute_ns", WALLS], 0.4),
        (Aggregation.MEAN, ["time.per_rank[*].overlap_ratio"], 0.25),
        (Aggregation.SHARE, ["tenants.parameters", "nothing"], None),
        (Aggregation.DIFFERENCE, ["nothing", "tenants.parameters"], None),
        (Aggregation.MEAN, ["nothing"], None),
    ],
)
def test_leaves_are_combined(how: Aggregation, leaves: list[str], value: float | None) -> None:
    made = read_leaves(TREE, *leaves, how=how)
    assert made.number == (None if value is None else pytest.approx(value))
    assert made.leaves == tuple(map(parse_path, leaves))


@settings(max_examples=25)
@given(st.lists(st.one_of(st.none(), st.floats(-1e15, 1e15)), max_size=20))
def test_unknown_is_never_zero(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    for how in (Aggregation.SUM, Aggregation.MEAN, Aggregation.LARGEST, Aggregation.SMALLEST):
        assert (combine(how, [values]) is None) == (not known)
    if known:
        assert combine(Aggregation.SUM, [values]) == pytest.approx(math.fsum(known), abs=1e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("value", "unit", "signed", "text"),
    [
        (412_000_000, Unit.NS, False, "412.0 ms"),
        (412_000_000, Unit.NS, True, "+412.0 ms"),
        (-412_000_000, Unit.NS, True, "-412.0 ms"),
        (0, Unit.NS, True, "0 ns"),
        (1_572_864, Unit.BYTES, False, "1.5 MiB"),
        (0.384, Unit.RATIO, False, "38.4 %"),
        (96.0, Unit.COUNT, False, "96"),
        (72.4e9, Unit.BYTES_PER_S, False, "72.4 GB/s"),
        (1.5, Unit.FACTOR, False, "1.50x"),
        (None, Unit.NS, True, UNKNOWN),
    ],
)
def test_a_figure_reads_in_its_unit(value: float | None, unit: Unit, signed: bool, text: str) -> None:
    assert Value(number=value, unit=unit, leaves=(), signed=signed).text == text


@pytest.mark.parametrize(
    ("name", "text"),
    [("saving_ns", "31.9..125.8 ms"), ("small", "800.0 µs..1.2 ms"), ("none", UNKNOWN)],
)
def test_a_range_has_both_leaves_and_sorts_by_its_upper_end(name: str, text: str) -> None:
    made = read_range(Cursor({name: TREE[name], "saving_ns": TREE[name]}).saving_ns)
    assert made.text == text
    assert (made.low, made.number) == tuple(TREE[name])  # type: ignore[arg-type]
    assert [str(leaf) for leaf in made.leaves] == ["saving_ns[0]", "saving_ns[1]"]


@pytest.mark.parametrize(("bound", "text"), [("at_least", "≥ 4.0"), ("at_most", "≤ 4.0"), ("exact", "4.0")])
def test_a_bound_is_read_from_the_report_and_drawn_with_its_sign(bound: str, text: str) -> None:
    tree = {"per_rank": [{"exposed_wait_ns": 4_000_000, "bounds": {"exposed_wait_ns": bound}}]}
    assert read_leaves(tree, "per_rank[0].exposed_wait_ns", in_ms=True).text == text
    assert read_leaves(tree, "per_rank[*].exposed_wait_ns", how=Aggregation.MEAN, in_ms=True).text == text
    falls = read_leaves(
        tree, "per_rank[0].wall_ns", "per_rank[0].exposed_wait_ns", how=Aggregation.DIFFERENCE
    )
    assert falls.number is None


@pytest.mark.parametrize("how", [Aggregation.DIFFERENCE, Aggregation.SHARE])
def test_what_a_bound_is_taken_from_is_bounded_the_other_way(how: Aggregation) -> None:
    tree = {"a_ns": 9, "b_ns": 4, "bounds": {"b_ns": "at_least"}}
    assert read_leaves(tree, "a_ns", "b_ns", how=how).bound is Bound.AT_MOST
    assert read_leaves(tree, "b_ns", "a_ns", how=how).bound is Bound.AT_LEAST
    assert read_leaves(tree, "a_ns", "b_ns", how=Aggregation.SUM).bound is Bound.AT_LEAST


def list_tables(app: ZprofApp) -> list[Table]:
    """Return the tables of the current screen."""
    return [each.table for each in app.screen.query(FactTable) if each.display and each.table is not None]


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=str)
def test_every_number_on_every_screen_is_a_leaf_of_the_report(
    loaded: LoadedRun, size: tuple[int, int]
) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            app.action_show(name)
            await settle(app, pilot)
            written = get_export(app)
            assert written is not None
            tree = json.loads(to_json(written.report))
            widgets = [
                each for each in app.screen.query("*") if hasattr(each, "shown_figures") and each.display
            ]
            figures = [figure for widget in widgets for figure in widget.shown_figures()]
            unknown = [figure for figure in figures if str(figure.leaves[0]) == "outlook.gaps"]
            assert all(figure.number is None for figure in unknown)
            assert_leaves(tree, [figure for figure in figures if figure not in unknown])
            assert any(figure.text in screen_text(app) for figure in figures), name
            lines = [line for table in list_tables(app) for line in table.rows]
            popups = [popup for line in lines if (popup := open_row(app, line)) is not None]
            tables = [popup.table for popup in popups if isinstance(popup, TablePopup)]
            known = [cell for table in tables for cell in table.list_values() if cell.leaves]
            assert_leaves(tree, known)
            for figure in (each for each in figures if each not in unknown):
                told = "\n".join(explain_number(figure, app.loaded))
                assert all(str(leaf) in told for leaf in figure.leaves[:8]), figure
            if size == SMALL:
                for table in (one for one in app.screen.query("FactTable") if one.display):
                    assert table.virtual_size.width <= table.size.width, "a number is cut"

    play(app_on(loaded), act, size)
