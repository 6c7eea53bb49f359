"""The plan screen by keys: knobs turn, the last change asked for wins, what is not predicted is said."""

import json
import threading
from copy import copy
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tests.support.tui_app import (
    app_on,
    finish_workers,
    messages,
    play,
    press,
    screen_text,
    settle,
    wait_until,
)
from tests.support.tui_memory import with_analysis
from zprof.analysis.analysis import RunAnalysis
from zprof.base.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.json_format import to_tree
from zprof.model.memory import Memory
from zprof.model.plan import Change, Outlook
from zprof.model.time import Time
from zprof.planner.plan_request import plan_request
from zprof.planner.request import PlanRequest
from zprof.reports.pages.plan_search import format_layout
from zprof.tui.app import ZprofApp
from zprof.tui.background import predict
from zprof.tui.screens.plan import PlanScreen, describe_layouts
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.knob_list import KnobList


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict at once: the pause is for a person's fingers."""
    monkeypatch.setattr(PlanScreen, "pause_s", 0.001)


class SlowPredictor:
    """A predictor that waits until it is let through, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Change] = []
        self.gate = threading.Semaphore(0)

    def __call__(self, analysis: RunAnalysis, changes: tuple[Change, ...], /) -> Outlook:
        self.asked += changes
        self.gate.acquire(timeout=60)
        return predict(analysis, changes)


def plan_of(app: ZprofApp) -> PlanScreen:
    assert isinstance(app.screen, PlanScreen)
    return app.screen


def test_knobs_are_turned_by_keys_and_clicks_predicted_and_reset(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "7")
        assert isinstance(app.focused, KnobList)
        plan = plan_of(app)
        text = await press(app, pilot, "j", "down", "down", "l", "right")
        assert plan.change == Change(bandwidth_ratio=4.0)
        assert all(part in text for part in ("*bandwidth", "73.5 ms", "~250.0", "~-73.5"))
        await press(app, pilot, "h", "k", "k", "k", "left")
        assert plan.change == Change(bandwidth_ratio=2.0, stage=2)
        await press(app, pilot, "down", "right")
        assert plan.change == Change(bandwidth_ratio=2.0, stage=2)
        assert len(messages(app)) == 1, "prefetch means nothing at stage 2, and says so"
        await press(app, pilot, "up", "x")
        assert plan.change == Change(bandwidth_ratio=2.0)
        assert "*bandwidth" not in await press(app, pilot, "tab", "X")
        assert plan.change == Change()
        for column, change in ((4, Change()), (20, Change(bandwidth_ratio=2.0)), (2, Change())):
            await pilot.click("#knobs", offset=(column, 4))
            await settle(app, pilot)
            assert plan.change == change

    play(app_on(alone), act)


def test_the_last_change_wins_and_answers_of_another_run_are_dropped(
    alone: LoadedRun, loaded: LoadedRun
) -> None:
    slow = SlowPredictor()
    app = app_on(alone, predictor=slow)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("7")
        await wait_until(pilot, lambda: slow.asked == [Change()])
        assert "323.5" in screen_text(app), "what was measured is there at once"
        plan = plan_of(app)
        await pilot.press("left", "left", "left")
        await pilot.pause(0.05)
        assert plan.change == Change(stage=0)
        assert slow.asked == [Change()], "one at a time"
        slow.gate.release()
        await wait_until(pilot, lambda: slow.asked == [Change(), Change(stage=0)])
        assert plan.planned.answer is None, "what was predicted first is not shown as the last"
        slow.gate.release()
        await wait_until(pilot, lambda: not plan.is_reading)
        await pilot.press("X")
        await pilot.pause()
        assert plan.planned.answer is not None
        assert len(slow.asked) == 2, "it was kept"
        await pilot.press("left")
        await wait_until(pilot, lambda: len(slow.asked) == 3)
        app.loaded = loaded
        app.refill()
        assert plan.change == Change(), "another run has knobs of its own"
        slow.gate.release()
        await wait_until(pilot, lambda: len(slow.asked) == 4)
        assert plan.planned.answer is None
        await pilot.press("q")
        assert app.return_code == 0, "who leaves does not wait"

    play(app, act)
    assert app.has_threads
    slow.gate.release()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (BadInput("stage [b]9\x1b[2J", hint="0 to 3"), ["stage [b]9\\x1b[2J", "0 to 3"]),
        (ZeroDivisionError("x"), ["ZeroDivisionError"]),
    ],
    ids=["refused", "fault"],
)
def test_what_cannot_be_predicted_is_said(alone: LoadedRun, error: Exception, shown: list[str]) -> None:
    def fail(analysis: RunAnalysis, changes: tuple[Change, ...], /) -> Outlook:
        raise error

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press(app, pilot, "7")
        assert all(part in text for part in (*shown, "323.5", "unknown"))
        assert shown[0] in await press(app, pilot, "g")

    play(app_on(alone, predictor=fail), act)


@pytest.mark.parametrize(
    ("parts", "knob"),
    [
        ({"time": Time()}, "micro-batches"),
        ({"memory": Memory()}, "bandwidth"),
        ({"time": Time(), "memory": Memory()}, "no setting applies"),
    ],
    ids=["no time", "no memory", "nothing"],
)
def test_half_a_run_has_half_a_plan(alone: LoadedRun, parts: dict[str, object], knob: str) -> None:
    report = replace(alone.report, **parts)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press(app, pilot, "7", "left", "enter", "escape", "x", "y", "m")
        assert knob in text
        assert ("no memory was recorded" if "time" not in parts else "no step was timed") in text

    gap = Gap(what="step", reason="no step was timed", remedy="record with zprof record")
    predictor = predict if "time" not in parts else lambda analysis, changes: Outlook(gaps=(gap,))
    play(app_on(replace(with_analysis(alone, **parts), report=report), predictor=predictor), act)


def test_a_predicted_number_opens_and_is_written_with_the_report_of_this_screen(
    alone: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press(app, pilot, "7", "left", "tab", "right", "right", "enter")
        assert all(part in text for part in ("~165.0", "formula", "whatif.compute"))
        await press(app, pilot, "escape", "Y")
        predicted = json.loads(app.clipboard)["predicted"]
        assert (predicted["is"], predicted["assumption"]) == ("predicted", "whatif.compute")
        await press(app, pilot, "shift+tab", "y")
        assert app.clipboard.split("\n")[2] == "| stage | 3 | \\* 2 |"
        for key, name in (("7", "a.json"), ("1", "b.json")):
            await press(app, pilot, key, "e", "ctrl+u", *name, "enter")
            await finish_workers(app, pilot)
        outlook = json.loads(Path("a.json").read_text())["outlook"]
        assert outlook["predictions"][0]["change"]["stage"] == 2
        assert json.loads(Path("b.json").read_text())["outlook"] == to_tree(alone.report)["outlook"]

    play(app_on(alone), act)


def with_parameters(loaded: LoadedRun, parameters: int | None) -> LoadedRun:
    """The run of a job of this size on 64 H100, with 512 samples of 8,192 tokens per step."""
    manifest = loaded.run.manifest
    training = replace(
        manifest.training, parameters=parameters, samples_per_step=512, tokens_per_step=512 * 8192
    )
    run = copy(loaded.run)
    run.manifest = replace(manifest, training=training)
    facts = replace(loaded.report.run, world_size=64, device="NVIDIA H100 80GB HBM3")
    return replace(loaded, run=run, report=replace(loaded.report, run=facts))


def test_layouts_of_a_run_are_those_of_a_search(alone: LoadedRun) -> None:
    shown = describe_layouts(with_parameters(alone, 70_000_000_000)).splitlines()
    request = PlanRequest(params=70_000_000_000, world=64, global_batch=512, sequence=8192, hardware="h100")
    search = plan_request(request, lambda name, job: job, analyses=("search",)).search
    assert search is not None
    names = [format_layout(found.layout) for found in search.front]
    assert [line for line in shown if line in names] == names
    assert "\n" not in describe_layouts(with_parameters(alone, 12))
    assert "parameters" in describe_layouts(with_parameters(alone, None))


def test_a_key_opens_the_layouts(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert "tokens/s per" in await press(app, pilot, "7", "f")

    play(app_on(with_parameters(alone, 8_000_000_000)), act)
