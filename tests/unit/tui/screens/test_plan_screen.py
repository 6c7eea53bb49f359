"""The Plan screen by keys: knobs turn, the last change asked for wins, what is not predicted is said."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.many_ranks import spread_out
from tests.support.outlooks import NO_MEMORY, NO_TIME, foreseen
from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, screen_text, settled
from tests.unit.tui.plan.test_plan_tables import without
from zprof.analysis.analysis import RunAnalysis
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.whatif import Change, Outlook
from zprof.tui.app import ZprofApp
from zprof.tui.figures import ModelFigure
from zprof.tui.screens.plan import PlanScreen
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.knob_list import KnobList

_MOST_PAUSES = 1000


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person's fingers need is nothing here."""
    monkeypatch.setattr(PlanScreen, "pause_s", 0.001)


async def on(app: ZprofApp, pilot: Pilot[int], *keys: str) -> str:
    """What the terminal shows after these keys, and after what they ask for."""
    await pilot.press(*keys)
    await settled(app, pilot)
    return " ".join(screen_text(app).split())


async def until(pilot: Pilot[int], is_so: Callable[[], bool]) -> None:
    for _ in range(_MOST_PAUSES):
        if is_so():
            return
        await pilot.pause(0.01)
    pytest.fail("it did not come to be")


class Gated:
    """A predictor that waits until it is let through, and says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Change] = []
        self.gate = threading.Semaphore(0)

    def __call__(self, analysis: RunAnalysis, changes: tuple[Change, ...], /) -> Outlook:
        self.asked += changes
        self.gate.acquire(timeout=60)
        return foreseen(analysis, changes)


def plan_of(app: ZprofApp) -> PlanScreen:
    assert isinstance(app.screen, PlanScreen)
    return app.screen


def test_a_knob_is_turned_predicted_marked_and_reset(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await on(app, pilot, "7")
        assert "AS MEASURED turn a knob" in text
        assert "gives a step of 291.1 ms where 323.5 ms was measured: -10.0 %" in text
        assert isinstance(app.focused, KnobList)
        text = await on(app, pilot, "j", "down", "down", "l", "right")
        assert plan_of(app).change == Change(bandwidth_ratio=4.0)
        assert "~ PREDICTED bandwidth x4: saves 82.5 ms of 323.5 ms a step, 25.5 %, between 58.4 and" in text
        assert "*bandwidth x4" in text
        assert "= step 323.5 ~241.0 ~-82.5" in text
        text = await on(app, pilot, "h")
        assert "*bandwidth x2" in text
        await on(app, pilot, "k", "k", "k", "left")
        assert plan_of(app).change == Change(bandwidth_ratio=2.0, stage=2)
        assert plan_of(app).planned.words == "stage 2, bandwidth x2"
        await on(app, pilot, "x")
        assert plan_of(app).change == Change(bandwidth_ratio=2.0)
        text = await on(app, pilot, "tab", "X")
        assert plan_of(app).change == Change()
        assert "AS MEASURED" in text
        assert "*bandwidth" not in text

    play(app_on(alone), act)


def test_keys_work_while_it_is_predicted_and_the_last_change_wins(alone: LoadedRun) -> None:
    slow = Gated()

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("7")
        await until(pilot, lambda: slow.asked == [Change()])
        text = screen_text(app)
        assert "predicting the run as it is ..." in text
        assert "323.5" in text, "what was measured is there at once"
        assert "..." in text
        await pilot.press("left", "left", "left")
        await pilot.pause(0.05)
        plan = plan_of(app)
        assert plan.change == Change(stage=0)
        assert "predicting stage 0 ..." in screen_text(app)
        assert slow.asked == [Change()], "one at a time"
        slow.gate.release()
        await until(pilot, lambda: slow.asked == [Change(), Change(stage=0)])
        assert plan.planned.answer is None, "what was predicted first is not shown as the last"
        slow.gate.release()
        await until(pilot, lambda: not plan.is_reading)
        await pilot.pause()
        assert "PREDICTED stage 0" in screen_text(app)
        await pilot.press("X")
        await pilot.pause()
        assert "AS MEASURED" in screen_text(app), "kept, and not asked again"
        assert len(slow.asked) == 2

    play(app_on(alone, predictor=slow), act)


def test_an_answer_for_another_run_is_nobodys(alone: LoadedRun, loaded: LoadedRun) -> None:
    slow = Gated()

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("7")
        await until(pilot, lambda: len(slow.asked) == 1)
        await pilot.press("left")
        app.loaded = loaded
        app.refill()
        plan = plan_of(app)
        assert plan.change == Change(), "another run has knobs of its own"
        slow.gate.release()
        await until(pilot, lambda: len(slow.asked) == 2)
        assert plan.planned.answer is None
        slow.gate.release()
        await until(pilot, lambda: not plan.is_reading)

    play(app_on(alone, predictor=slow), act)


def test_who_leaves_does_not_wait(alone: LoadedRun) -> None:
    slow = Gated()
    app = app_on(alone, predictor=slow)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("7")
        await until(pilot, lambda: len(slow.asked) == 1)
        await pilot.press("q")
        assert app.return_code == 0

    play(app, act)
    assert app.has_threads
    slow.gate.release()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (BadInput("stage [b]9\x1b[2J", hint="0 to 3"), "NOT PREDICTED stage [b]9\\x1b[2J (0 to 3)"),
        pytest.param(
            ZeroDivisionError("x"),
            "NOT PREDICTED internal error, ZeroDivisionError: x",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["refused", "a fault"],
)
def test_what_cannot_be_predicted_is_said(alone: LoadedRun, error: Exception, says: str) -> None:
    def fails(analysis: RunAnalysis, changes: tuple[Change, ...], /) -> Outlook:
        raise error

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await on(app, pilot, "7")
        assert says in text
        assert "= step 323.5 unknown unknown" in text
        assert "what helps" in await on(app, pilot, "tab", "right", "right", "enter")
        assert says.removeprefix("NOT PREDICTED ")[:12] in await on(app, pilot, "escape", "g")

    play(app_on(alone, predictor=fails), act)


def test_gaps_are_said_and_listed(alone: LoadedRun) -> None:
    gaps = (Gap(what="a " * 100, reason="b", remedy="c"), NO_TIME)

    def doubts(analysis: RunAnalysis, changes: tuple[Change, ...], /) -> Outlook:
        return replace(foreseen(analysis, changes), gaps=gaps)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        lines = (await on(app, pilot, "7") and screen_text(app)).split("\n")
        (gap,) = [line for line in lines if "not known (g: all 2): a a a" in line]
        assert gap.rstrip().endswith("…")
        text = await on(app, pilot, "g")
        assert NO_TIME.remedy in text
        await on(app, pilot, "escape", "1", "g")
        assert NO_TIME.reason not in screen_text(app), "those of this screen are none of another"

    play(app_on(alone, predictor=doubts), act)


@pytest.mark.parametrize(
    ("lacks", "knob", "says"),
    [
        ("time", "bandwidth", NO_TIME.reason),
        ("memory", "", NO_MEMORY.reason),
    ],
)
def test_half_a_run(alone: LoadedRun, lacks: str, knob: str, says: str) -> None:
    half = without(alone, time=lacks == "time", memory=lacks == "memory")

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await on(app, pilot, "7", "left")
        assert f"not predicted: {lacks if lacks == 'memory' else 'step'}: {says}; what helps: record" in text
        assert not knob or knob not in text
        assert "PREDICTED stage 2:" in text
        assert "g says why" in text

    play(app_on(half), act)


def test_nothing_measured_has_no_knobs(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("7", "right", "down", "enter", "x", "y", "m")
        text = await on(app, pilot)
        assert "no knob" in text
        assert "no step was timed: g says why" in text

    play(app_on(without(alone, time=True, memory=True)), act)


def test_an_idle_knob_says_why_it_does_not_turn(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await on(app, pilot, "7", "left", "down", "right")
        assert plan_of(app).change == Change(stage=2)
        assert [note.message for note in app._notifications] == [
            "prefetch: stage 3 alone gathers parameters unit by unit"
        ]
        text = await on(app, pilot, "enter")
        assert "means nothing now: stage 3 alone" in text
        assert "choices 0, 1, 2, 3, 4" in text

    play(app_on(alone), act)


def test_a_predicted_number_opens_what_it_rests_on_and_is_copied(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await on(app, pilot, "7", "left", "tab", "right", "right", "enter")
        assert "compute, predicted: ~165.0" in text
        assert "formula t = sum of units" in text
        assert "error on this run -10.0 %" in text
        await on(app, pilot, "escape", "left", "enter")
        assert "formula" in screen_text(app), "a measured one opens as elsewhere"
        await on(app, pilot, "escape", "Y")
        assert json.loads(app.clipboard)["predicted"]["is"] == "predicted"
        await on(app, pilot, "shift+tab", "y")
        assert app.clipboard.split("\n")[2] == "| stage | 3 | \\* 2 |"

    play(app_on(alone), act)


def test_the_report_is_written_with_the_prediction(
    alone: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await on(app, pilot, "7", "left", "e")
        await pilot.press("enter")
        await app.workers.wait_for_complete()
        app._export("a.json")
        await app.workers.wait_for_complete()
        outlook = json.loads(Path("a.json").read_text())["outlook"]
        assert outlook["predictions"][0]["change"]["stage"] == 2
        await on(app, pilot, "1")
        app._export("b.json")
        await app.workers.wait_for_complete()
        assert json.loads(Path("b.json").read_text())["outlook"] == alone.tree["outlook"]

    play(app_on(alone), act)


@pytest.mark.parametrize(
    "size",
    [SMALL, MIDDLE, *(pytest.param(size, marks=pytest.mark.slow) for size in ((100, 24), LARGE))],
    ids=str,
)
def test_no_number_is_cut_at_any_size(loaded: LoadedRun, size: tuple[int, int]) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await on(app, pilot, "7", "left", "m", "m")
        for table in app.screen.query(FactTable):
            if table.display:
                assert table.virtual_size.width <= table.size.width, table.id
                assert table.size.height > 2, table.id
        shown = [number for table in app.screen.query(FactTable) for number in table._lines]
        assert shown
        text = screen_text(app)
        assert "~323.5" in text
        assert ("model " in text) == (size[0] >= 120)

    play(app_on(loaded), act, size)


def test_a_smaller_terminal_shows_one_table_below_the_step_and_m_the_other(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await on(app, pilot, "7")
        assert "memory at the peak" in screen_text(app)
        assert "what the model took" in screen_text(app)
        await on(app, pilot, "m")
        assert app.focused is not None
        assert app.focused.id == "fit"
        await pilot.resize_terminal(*SMALL)
        await settled(app, pilot)
        assert "memory at the peak" not in screen_text(app)
        assert "what the model took" in screen_text(app)
        assert "memory at the peak" in await on(app, pilot, "m")

    play(app_on(alone), act, MIDDLE)


def test_a_click_goes_to_a_knob_and_turns_it(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await on(app, pilot, "7")
        await pilot.click("#knobs", offset=(4, 4))
        await settled(app, pilot)
        plan = plan_of(app)
        assert plan.change == Change()
        await pilot.click("#knobs", offset=(20, 4))
        await settled(app, pilot)
        assert plan.change == Change(bandwidth_ratio=2.0)
        await pilot.click("#knobs", offset=(2, 4))
        await settled(app, pilot)
        assert plan.change == Change()

    play(app_on(alone), act)


def test_a_low_terminal_shows_the_knob_under_the_cursor(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("7", *["down"] * 9)
        text = await on(app, pilot)
        assert "micro-batches" in text

    play(app_on(alone), act, (80, 14))


def test_a_thousand_ranks(alone: LoadedRun) -> None:
    report = spread_out(alone.report, ranks=1024, steps=2, late=7)
    analysis = replace(alone.analysis, time=report.time, memory=report.memory)
    many = replace(alone, report=report, analysis=analysis)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await on(app, pilot, "7", "left")
        assert "PREDICTED stage 2" in text
        assert "rank 1023 is the slowest" in await on(app, pilot, "m")

    play(app_on(many), act)


def test_without_colours_what_is_predicted_is_marked(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await on(app, pilot, "7", "left")
        strips = app.screen._compositor.render_strips()
        found = [segment for strip in strips for segment in strip if "~165.0" in segment.text]
        assert found
        assert all(segment.style is not None and segment.style.italic for segment in found)
        assert not any(segment.style is not None and segment.style.color for segment in found)
        numbers = [n for n in app.screen.query_one("#step", FactTable).table.figures()]  # type: ignore[union-attr]
        assert any(isinstance(number, ModelFigure) for number in numbers)

    play(app_on(alone, mono=True), act)
