"""Both runs side by side, by keys; a baseline that is named later; A and B change places."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import app_on, play, press, screen_text, settled
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable

_MOST_PAUSES = 2000


async def measured(app: ZprofApp, pilot: Pilot[int]) -> None:
    """Until nothing is measured any more."""
    for _ in range(_MOST_PAUSES):
        await pilot.pause(0.01)
        if not app.is_measuring:
            break
    await settled(app, pilot)
    assert not app.is_measuring


async def press_on(app: ZprofApp, pilot: Pilot[int], *keys: str) -> str:
    """What the terminal shows after these keys, in an app that runs."""
    for key in keys:
        await pilot.press(key)
        await settled(app, pilot)
    return screen_text(app)


def test_rows_with_interval_and_verdict(loaded: LoadedRun) -> None:
    text = press(app_on(loaded), "6")
    assert "A ddp (baseline)  B zero3 (this run)  per step  all rows" in text
    assert "✗ SLOWER 323.5 ms vs 200.3 ms a step, +62 % [+53.1, +69.2]" in text
    assert "step time 200.3 ms 323.5 ms +61.5 % +53..+69 % ✗ worse" in " ".join(text.split())
    assert "MODELLED" in text
    assert "settings: 2 differ" in text


def test_other_views_and_what_opens(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press_on(app, pilot, "6")
        assert "only differences" in await press_on(app, pilot, "d")
        assert "all rows" in await press_on(app, pilot, "d")
        text = await press_on(app, pilot, "n")
        assert "per token" in text
        assert "rank time a token" in text
        assert "6.3 ms    10.1 ms  +61.5 %" in text
        assert "per step" in await press_on(app, pilot, "n")
        assert "in zprof compare A B -f json: sections[0].rows[0]" in await press_on(app, pilot, "enter")
        text = await press_on(app, pilot, "escape", "right", "enter")
        assert "wall = compute + exposed transfer" in text
        text = await press_on(app, pilot, "escape", "tab", "enter")
        assert "in zprof compare A B -f json: settings[" in text

    play(app_on(loaded), act)


def test_d_says_that_all_settings_are_the_same(loaded: LoadedRun) -> None:
    assert loaded.both is not None
    equal = tuple(replace(setting, b=setting.a) for setting in loaded.both.settings)
    same = replace(loaded, both=replace(loaded.both, settings=equal))

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert "all settings are the same" in await press_on(app, pilot, "6", "d")
        assert [note.message for note in app._notifications] == ["all settings are the same"]
        await press_on(app, pilot, "d")
        assert len(app._notifications) == 1

    play(app_on(same), act)


def test_x_makes_the_baseline_the_run(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("6", "x")
        await measured(app, pilot)
        text = screen_text(app)
        assert "A zero3 (baseline)  B ddp (this run)" in text
        assert "✓ OK" in text
        assert "ddp · 2 ranks" in text, "the status line, too"
        await pilot.press("x")
        await measured(app, pilot)
        assert "A ddp (baseline)  B zero3 (this run)" in screen_text(app)
        assert app.loaded is not None
        assert app.loaded.report == loaded.report

    play(app_on(loaded), act)


def test_without_a_baseline_it_says_how_to_name_one(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in ("6", "d", "n", "x"):
            text = await press_on(app, pilot, key)
            assert "There is nothing to compare with" in text
            assert "zprof tui RUN --baseline OTHER_RUN" in text
            assert "metric" not in text
            keys = text.split("\n")[-1]
            assert "differs" not in keys, "what needs a baseline is not offered"
            assert "sort" not in keys
            assert "gaps" in keys

    play(app_on(alone), act)


def test_a_baseline_is_named_measured_and_shown(
    alone: LoadedRun, baseline_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(baseline_run.parent)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("6", "b")
        await settled(app, pilot)
        await pilot.press(*baseline_run.name, "enter")
        await measured(app, pilot)
        assert app.asked.baseline == Path(baseline_run.name)
        text = screen_text(app)
        assert "A ddp (baseline)  B zero3 (this run)" in text
        assert "+61.5 % +53..+69 % ✗ worse" in " ".join(text.split())

    play(app_on(alone), act)


@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 36), marks=pytest.mark.slow)], ids=str)
def test_a_long_verdict_says_that_it_is_cut_and_help_has_it_all(
    loaded: LoadedRun, size: tuple[int, int]
) -> None:
    sentence = "the ranks do not fit together: " + "without that nothing is known " * 12 + "the end"
    verdict = replace(loaded.report.verdict, sentence=f"? INCONCLUSIVE {sentence}")
    said = replace(loaded, report=replace(loaded.report, verdict=verdict))

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        lines = (await press_on(app, pilot, "6")).split("\n")
        cut = [line for line in lines if "the ranks do not fit" in line or "nothing is known" in line]
        assert len(cut) == 2
        assert cut[1].endswith("…")
        assert len(cut[1]) <= size[0]
        assert "the end" in " ".join((await press_on(app, pilot, "question_mark")).split())

    play(app_on(said), act, size)


def test_letters_instead_of_glyphs(loaded: LoadedRun) -> None:
    text = press(app_on(loaded, ascii_only=True), "6")
    assert text.isascii()
    assert "x worse" in text


@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_the_verdict_is_never_cut(loaded: LoadedRun, width: int) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for keys in (("6",), ("d",), ("n",)):
            await pilot.press(*keys)
            await settled(app, pilot)
            for table in app.screen.query("FactTable"):
                assert table.virtual_size.width <= table.size.width, (table.id, keys)

    play(app_on(loaded), act, size=(width, 24))


def test_rows_are_copied_searched_and_sorted(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press_on(app, pilot, "6", "y")
        assert app.clipboard.split("\n")[2].startswith("| step time | 200.3 ms | 323.5 ms | +61.5 % |")
        await press_on(app, pilot, "right", "Y")
        assert json.loads(app.clipboard)["A"]["leaves"] == ["comparison.baseline_time[*].wall_ns"]
        text = await press_on(app, pilot, "slash", *"hidden", "enter")
        assert "side by side  /hidden (esc: all)" in text
        assert "compute" not in text
        assert "compute" in await press_on(app, pilot, "escape")
        table = app.screen.query_one("#compare", FactTable)
        await press_on(app, pilot, "s", "s")
        assert [str(column.label) for column in table.ordered_columns][1] == "A ▼"
        largest = table.focused_line()
        await press_on(app, pilot, "S")
        assert [str(column.label) for column in table.ordered_columns][1] == "A ▲"
        assert table.focused_line() != largest

    play(app_on(loaded), act)
