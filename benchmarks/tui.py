"""The terminal UI on many ranks: how soon it paints and moves between screens, how large its tables get.

    python -m benchmarks.tui [--ranks 1024] [--steps 20] [--rounds 5] [--run RUN]

Simulates a job with one late rank, imports its traces, and drives ``zprof tui`` without a terminal, with
Textual's ``run_test`` at 80x24 and 200x50.  Prints and writes ``benchmarks/results/tui-DATE.json``, medians:

* *first paint*: from the start of the app until the Overview shows the run's name, which comes from the
  manifest, while the run is still being measured; and from the start of a separate process, with imports.
* *screens*: from the Overview to each other screen, until it is filled and drawn, the first time in an app
  and
  the second; and back to the Overview.  The run has been measured by then.
* *tables*: rows of the largest table of each screen.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.conditions import conditions, load_average, today
from benchmarks.inputs import import_traces, simulate_traces
from benchmarks.processes import ROOT

if TYPE_CHECKING:
    from zprof.tui.app import ZprofApp
    from zprof.tui.session import LoadedRun


RESULTS = Path(__file__).parent / "results"
SIZES = ((80, 24), (200, 50))
_PAINT = "import sys; from benchmarks.tui import paint; paint(*sys.argv[1:])"
#: Refreshes to wait for after a screen is filled: a table computes its widths when it is idle.
_REFRESHES = 3
#: Letters of the verdict that tell it from all else on the screen, and stand in one line.
_RECOGNISED_LETTERS = 30


def made_run(folder: Path, ranks: int, steps: int) -> Path:
    """Return the run of a simulated job."""
    traces, run = folder / "traces", folder / "job.zprof"
    simulate_traces(traces, ranks, {"steps": steps, "units": 2})
    import_traces(traces, run)
    return run


def first_paint(run: Path, size: tuple[int, int]) -> dict[str, float]:
    """Return the seconds from the start of the app, and of its process."""
    arguments = [str(run), str(size[0]), str(size[1])]
    started = time.time()
    command = [sys.executable, "-c", _PAINT, *arguments, str(started)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout)


def paint(run: str, columns: str, lines: str, started: str) -> None:
    """Paint in a process of its own, which exits by force when done, while the run is still being
    measured.
    """
    asyncio.run(_paint(Path(run), (int(columns), int(lines)), float(started)))


def paint_answer(run: str) -> None:
    """Paint until the Overview shows the verdict and its numbers, in a process of its own."""
    asyncio.run(_paint_answer(Path(run)))


async def _paint_answer(run: Path) -> None:
    app = _app(run)
    async with app.run_test(size=SIZES[0]):
        while app.loaded is None or not _is_filled(app, "overview"):
            await asyncio.sleep(0.005)
        start_of_verdict = app.loaded.report.verdict.sentence[:_RECOGNISED_LETTERS]
        while start_of_verdict not in drawn(app):
            await asyncio.sleep(0.005)
        sys.stdout.flush()
        os._exit(0)


async def _paint(run: Path, size: tuple[int, int], started: float) -> None:
    begin = time.perf_counter()
    app = _app(run)
    async with app.run_test(size=size):
        while run.name.removesuffix(".zprof") not in drawn(app):
            await asyncio.sleep(0)
        seconds = {"app_s": time.perf_counter() - begin, "process_s": time.time() - started}
        print(json.dumps(seconds | {"measured_by_then": app.loaded is not None}), flush=True)
        os._exit(0)


def _app(run: Path, loaded: "LoadedRun | None" = None) -> "ZprofApp":
    from zprof.run.reader import load as open_run
    from zprof.tui.app import ZprofApp
    from zprof.tui.session import RunRequest

    return ZprofApp(RunRequest(path=run, opener=open_run), loaded=loaded)


def drawn(app: "ZprofApp") -> str:
    """Return all text that the terminal shows."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def _loaded(run: Path) -> "LoadedRun":
    """Return a run measured by an app, next to its screen."""
    app = _app(run)
    async with app.run_test(size=SIZES[0]):
        while app.is_measuring or app.loaded is None:
            await asyncio.sleep(0.1)
        return app.loaded


async def switched(app: "ZprofApp", name: str) -> float:
    """Return the seconds until the screen of this name is filled and drawn."""
    begin = time.perf_counter()
    app.action_show(name)
    refreshed, still = asyncio.Event(), _REFRESHES
    while still:
        refreshed.clear()
        app.screen.call_after_refresh(refreshed.set)
        await refreshed.wait()
        if _is_filled(app, name):
            still -= 1
    drawn(app)
    return time.perf_counter() - begin


def _is_filled(app: "ZprofApp", name: str) -> bool:
    screen = app.screen
    is_reading = getattr(screen, "is_reading", False)
    return (
        getattr(screen, "name_of", "") == name
        and getattr(screen, "filled", None) is not None
        and not is_reading
    )


async def visit(
    loaded: "LoadedRun", size: tuple[int, int]
) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return the seconds to each screen, first and second time, and the rows of its largest table."""
    from zprof.tui.app import SCREENS
    from zprof.tui.widgets.fact_table import FactTable

    gc.collect()  # the app of the round before: a user's process has only one
    app = _app(loaded.run.path, loaded)
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    rows: dict[str, int] = {}
    async with app.run_test(size=size):
        await switched(app, "overview")
        for time_of in ("first_s", "again_s"):
            for name in SCREENS:
                if name != "overview":
                    seconds[name][time_of] = await switched(app, name)
                rows[name] = max((table.row_count for table in app.screen.query(FactTable)), default=0)
                seconds["overview"][time_of] = await switched(app, "overview")
    return seconds, rows


def measured(run: Path, rounds: int) -> dict[str, Any]:
    """Return all figures of a run."""
    paints = {_name(size): [first_paint(run, size) for _ in range(rounds)] for size in SIZES}
    begin = time.perf_counter()
    loaded = asyncio.run(_loaded(run))
    load_s = time.perf_counter() - begin
    visits = {_name(size): [asyncio.run(visit(loaded, size)) for _ in range(rounds)] for size in SIZES}
    report = loaded.report
    return {
        "benchmark": "tui",
        "ranks": len(report.run.ranks_loaded),
        "steps": len(report.run.steps),
        "steps_of_ranks": len(report.time.steps),
        "rounds": rounds,
        "first_paint": {size: _medians(found) for size, found in paints.items()},
        "load_s": load_s,
        "screens": {size: _screens([seconds for seconds, _ in found]) for size, found in visits.items()},
        "rows": {size: found[-1][1] for size, found in visits.items()},
        "load_average_after": load_average(),
    }


def _name(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(each[key] for each in found) for key in found[0]}


def _screens(found: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {name: _medians([each[name] for each in found]) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", type=Path, help="this run, instead of a simulated one")
    parser.add_argument("--output", type=Path, default=RESULTS / f"tui-{today()}.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zprof-bench-") as folder:
        run = options.run or made_run(Path(folder), options.ranks, options.steps)
        found = measured(run.resolve(), options.rounds)
    result = {"conditions": conditions(), "benchmark": "tui", "rows": [found]}
    print(json.dumps(found, indent=1))
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
