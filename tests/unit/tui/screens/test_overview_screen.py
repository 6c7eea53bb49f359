"""The first screen, by keys: the verdict, the ledger, what opens."""

from tests.support.tui_app import app_on, press
from zprof.tui.session import Loaded


def test_the_verdict_and_the_ledger_are_seen_at_once(loaded: Loaded) -> None:
    text = press(app_on(loaded))
    assert "SLOWER 323.5 ms vs 200.3 ms a step" in text
    assert "exposed transfer" in text
    assert "ZP401" in text


def test_a_number_opens_with_what_it_is_made_of(loaded: Loaded) -> None:
    text = press(app_on(loaded), "right", "enter")
    assert "wall = compute + exposed transfer" in text
    assert "time.per_rank[*].wall_ns" in text
    assert "esc: back" in text
    assert "esc: back" not in press(app_on(loaded), "right", "enter", "escape")


def test_a_finding_opens_its_page(loaded: Loaded) -> None:
    text = press(app_on(loaded), "tab", "enter", size=(120, 36))
    assert "what to change" in text
    assert "ZeroConfig(stage=3" in text


def test_alone_there_is_no_baseline(alone: Loaded) -> None:
    assert "baseline ms" not in press(app_on(alone))
