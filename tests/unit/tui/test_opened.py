"""What enter leads to: numbers, names beside numbers, findings."""

from tests.support.tui_app import app_on, press
from zprof.tui.figures import Unit, figure
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Line, Opens, TextCell, find_number


def test_a_name_opens_the_first_number_of_its_row(alone: LoadedRun) -> None:
    word, first = TextCell("exposed transfer"), figure(alone.tree, Unit.NS, "time.per_rank[0].wall_ns")
    second = figure(alone.tree, Unit.NS, "time.per_rank[1].wall_ns")
    line = Line(key="a", cells=(word, first, second))
    assert find_number(line, word) is first
    assert find_number(line, second) is second
    assert find_number(Line(key="a", cells=(word,)), word) is None


def test_a_name_of_a_row_that_leads_somewhere_leads_there(alone: LoadedRun) -> None:
    word, number = TextCell("rank 1"), figure(alone.tree, Unit.NS, "time.per_rank[1].wall_ns")
    line = Line(key="a", cells=(word, number), opens=Opens.RANK, target=1)
    assert find_number(line, word) is None
    assert find_number(line, number) is number


def test_enter_on_a_term_of_the_ledger_explains_it(loaded: LoadedRun) -> None:
    text = press(app_on(loaded), "shift+tab", "enter")
    assert "exposed transfer: " in text
    assert "formula " in text
