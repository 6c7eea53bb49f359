"""What enter leads to: numbers, names beside numbers, findings."""

from tests.support.tui_app import app_on, press
from zprof.tui.figures import Unit, figure
from zprof.tui.session import Loaded
from zprof.tui.tables import Line, Opens, Word, number_of


def test_a_name_opens_the_first_number_of_its_row(alone: Loaded) -> None:
    word, first = Word("exposed transfer"), figure(alone.tree, Unit.NS, "time.per_rank[0].wall_ns")
    second = figure(alone.tree, Unit.NS, "time.per_rank[1].wall_ns")
    line = Line(key="a", cells=(word, first, second))
    assert number_of(line, word) is first
    assert number_of(line, second) is second
    assert number_of(Line(key="a", cells=(word,)), word) is None


def test_a_name_of_a_row_that_leads_somewhere_leads_there(alone: Loaded) -> None:
    word, number = Word("rank 1"), figure(alone.tree, Unit.NS, "time.per_rank[1].wall_ns")
    line = Line(key="a", cells=(word, number), opens=Opens.RANK, target=1)
    assert number_of(line, word) is None
    assert number_of(line, number) is number


def test_enter_on_a_term_of_the_ledger_explains_it(loaded: Loaded) -> None:
    text = press(app_on(loaded), "shift+tab", "enter")
    assert "exposed transfer: " in text
    assert "formula " in text
