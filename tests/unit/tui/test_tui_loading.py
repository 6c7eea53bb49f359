"""The first picture comes from the manifest; what is measured comes later, and of several only the last."""

import gc
import json
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tests.support.command_calls import run_python
from tests.support.tui_app import app_on, finish_workers, messages, play, press, screen_text, wait_until
from zprof.analysis.analysis import RunAnalysis
from zprof.base.errors import BadInput
from zprof.diagnosis.diagnose import report_numbers
from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.background import Loader
from zprof.tui.session import LoadedRun, PendingAnalysis, Progress, RunRequest, load

HEAVY = (
    "numpy",
    "pandas",
    "pyarrow",
    "torch",
    "zprof.analysis.analysis",
    "zprof.diagnosis.diagnose",
    "zprof.planner",
)
_PREVIEW = f"""
import json, sys
from pathlib import Path
import zprof.tui.app
from zprof.run.reader import load
from zprof.tui.session import RunRequest, preview_run
look = preview_run(RunRequest(path=Path(sys.argv[1]), opener=load))
print(json.dumps([look.facts.name, [name for name in {HEAVY!r} if name in sys.modules]]))
"""
_OPENED = """
import sys
from pathlib import Path
from zprof.analysis.step_timeline.build import build_step_model
from zprof.model.quantities import parse_path
from zprof.model.quantities import Value
from zprof.run.reader import load as open_run
from zprof.tui.opening import build_rows_table, find_rows
from zprof.tui.opening import build_instance_table
from zprof.tui.session import RunRequest, load
from zprof.tui.timeline_cursor import describe_event
loaded = load(RunRequest(path=Path(sys.argv[1]), opener=open_run), lambda text: None)
build_instance_table(loaded.analysis, loaded.report.time.collectives[0])
build_rows_table(find_rows(Value(number=1, unit="ns", leaves=(parse_path("time.steps[0].wall_ns"),)), loaded))
step = loaded.report.time.steps[0]
model = build_step_model(loaded.run, loaded.analysis, step.rank, step.step)
print(len([describe_event(model, lane, 0) for lane in model.lanes]) > 0, "pandas" in sys.modules)
"""


class Gate:
    """A loader that waits until it is let through; of several, each by its baseline."""

    def __init__(self, loaded: LoadedRun, *open_for: Path | None) -> None:
        self.loaded = loaded
        self.gates: dict[Path | None, threading.Event] = {}
        self.ended: list[Path | None] = []
        for baseline in open_for:
            self.open(baseline)

    def __call__(self, request: RunRequest, progress: Progress, /) -> LoadedRun:
        gate = self.gates.setdefault(request.baseline, threading.Event())
        progress("measuring zero3: 2 ranks")
        gate.wait(60)
        try:
            progress("asking the rules")
        finally:
            self.ended.append(request.baseline)
        return self.loaded

    def open(self, baseline: Path | None) -> None:
        self.gates.setdefault(baseline, threading.Event()).set()


def app_with(loader: Loader, run: Path, loaded: LoadedRun | None = None) -> ZprofApp:
    return ZprofApp(RunRequest(path=run, opener=open_run), loaded=loaded, loader=loader)


async def name_baseline(app: ZprofApp, pilot: Pilot[int], path: str) -> None:
    await pilot.press("b")
    await pilot.press(*path, "enter")
    await pilot.pause()


def test_the_first_picture_is_from_the_manifest(alone: LoadedRun, slow_run: Path) -> None:
    gc.unfreeze()
    gate = Gate(alone)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await wait_until(pilot, lambda: "measuring zero3: 2 ranks" in screen_text(app))
        text = screen_text(app)
        assert "zero3 · 2 ranks · 5 steps" in text
        assert " gaps" not in text.splitlines()[-2], "not known yet"
        await pilot.press("3", "y", "o", "enter", "f1", "escape", "1")
        assert app.loaded is None
        gate.open(None)
        await wait_until(pilot, lambda: "ZP401" in screen_text(app))
        assert app.focused is not None
        assert not app.is_measuring
        assert not any(one is alone for one in gc.get_objects()), "it is not searched for garbage"

    play(app_with(gate, slow_run), act)
    gc.freeze()


def test_numbers_are_shown_while_causes_are_looked_for(alone: LoadedRun, slow_run: Path) -> None:
    gate = threading.Event()
    measured = replace(alone, report=report_numbers(alone.analysis), is_judged=False)

    def judge(request: RunRequest, progress: Progress, /) -> LoadedRun:
        progress(measured)
        progress("looking for causes: 3 of 9")
        gate.wait(60)
        return alone

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await wait_until(pilot, lambda: "looking for causes: 3 of 9" in screen_text(app))
        text = screen_text(app)
        assert "exposed wait" in text, "the ledger"
        assert "ZP" not in text
        assert not any(word in text for word in ("OK", "INCONCLUSIVE", "none of")), "nothing is judged yet"
        lanes = await press(app, pilot, "4")
        assert "collectives" in lanes
        assert "lateness" in await press(app, pilot, "5", "m", "M")
        await press(app, pilot, "left_square_bracket")
        selected = app.selected
        gate.set()
        await wait_until(pilot, lambda: not app.is_measuring)
        assert app.selected == selected
        assert "ZP401" in await press(app, pilot, "1")

    play(app_with(judge, slow_run), act)


def test_loading_gives_the_numbers_before_the_findings(
    slow_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZPROF_NO_CACHE", "1")
    seen: list[str | LoadedRun] = []
    loaded = load(RunRequest(path=slow_run, opener=open_run), seen.append)
    at = next(index for index, each in enumerate(seen) if isinstance(each, LoadedRun))
    measured, counts = seen[at], [each for each in seen[at:] if isinstance(each, str) and " of " in each]
    assert isinstance(measured, LoadedRun)
    assert (measured.report.time, measured.report.memory) == (loaded.report.time, loaded.report.memory)
    assert not measured.report.findings
    assert loaded.report.findings
    done = [int(each.split()[-3]) for each in counts]
    assert done == sorted(done)
    assert done[-1] == int(counts[-1].split()[-1]) - 1


def test_another_baseline_stops_the_measuring_before(loaded: LoadedRun, slow_run: Path) -> None:
    gate, other = Gate(loaded), Path("other.zprof")

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await wait_until(pilot, lambda: app.is_measuring and None in gate.gates)
        await name_baseline(app, pilot, str(other))
        await wait_until(pilot, lambda: other in gate.gates)
        gate.open(None)
        await wait_until(pilot, lambda: gate.ended == [None])
        await pilot.pause()
        assert app.loaded is None
        assert app.is_measuring
        gate.open(other)
        await wait_until(pilot, lambda: app.loaded is not None)
        assert app.request.baseline == other

    play(app_with(gate, slow_run), act)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (BadInput("a/b[bold]: torn", hint="record again"), "a/b[bold]: torn (record again)"),
        (ZeroDivisionError("x\x1b[2J"), "ZeroDivisionError"),
    ],
    ids=["refused", "fault"],
)
def test_what_cannot_be_measured_is_said(slow_run: Path, error: Exception, shown: str) -> None:
    def fail(request: RunRequest, progress: Progress, /) -> LoadedRun:
        raise error

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await wait_until(pilot, lambda: shown in screen_text(app))
        assert "\x1b" not in screen_text(app)
        await pilot.press("q")
        assert app.return_code == 0

    play(app_with(fail, slow_run), act)


def test_a_baseline_that_fails_changes_nothing_and_a_later_success_clears_its_message(
    loaded: LoadedRun,
) -> None:
    gate = Gate(replace(loaded), Path("good"))

    def load_some(request: RunRequest, progress: Progress, /) -> LoadedRun:
        if request.baseline == Path("bad"):
            raise BadInput("bad: no such run", hint="give the folder")
        return gate(request, progress)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.select(rank=0, step=6)
        before = app.selected, app.request
        await name_baseline(app, pilot, "bad")
        await finish_workers(app, pilot)
        assert app.loaded is loaded
        assert (app.selected, app.request) == before
        assert "bad: no such run" in " ".join(messages(app))
        await name_baseline(app, pilot, "good")
        await wait_until(pilot, lambda: not app.is_measuring)
        await pilot.pause()
        assert not messages(app)
        assert app.loaded is gate.loaded
        assert app.selected == before[0]

    play(app_with(load_some, loaded.run.path, loaded), act)


def test_the_preview_of_a_run_imports_nothing_that_reads_tables(slow_run: Path) -> None:
    assert json.loads(run_python("-c", _PREVIEW, str(slow_run))) == [slow_run.name, []]


def test_what_is_opened_needs_no_pandas(slow_run: Path) -> None:
    assert run_python("-c", _OPENED, str(slow_run)).split() == ["True", "False"]


def test_a_damaged_table_behind_a_kept_report_is_said_and_the_screens_stay(alone: LoadedRun) -> None:
    def refuse() -> RunAnalysis:
        raise BadInput("events.parquet: damaged", hint="record again")

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "tab", "enter")  # a number of the overview
        assert "events.parquet: damaged" in " ".join(messages(app))
        await press(app, pilot, "3", "enter")  # a collective
        text = await press(app, pilot, "4")  # the timeline
        assert "events.parquet: damaged" in text
        await press(app, pilot, "5", "6", "7", "8", "1")
        assert app.is_running

    play(app_on(replace(alone, pending=PendingAnalysis(refuse))), act)
