"""``zprof demo``: reproduce a typical support case on this machine."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.cli.progress import steps_progress
from zprof.model.extras import Extra, require_extra

if TYPE_CHECKING:
    from zprof.integrations.demo_scenes import Scene
    from zprof.model.report import Report
    from zprof.reports.page import Page


_INTRODUCTION = """\
"We turned sharding on to get headroom, and the step got slower. Where do we look?"

This demo reproduces that case with 2 ranks on this machine. The ranks, the engine, the
collectives (gloo) and the memory are real. Link speed and compute time per block are
MODELLED, so that overlap shows on two cores. Takes about a minute.

"""


class DemoCommand:
    """Reproduce a typical support case: why did sharding make the step slower?

    Trains a small GPT-2-shaped model three times on two ranks: plain data parallel
    (A), fully sharded on a slow modelled link (B), and with the fix that B's report
    recommends (C). Does not need a GPU.

    examples:
      zprof demo
      zprof demo -o /tmp/zprof-demo
    """

    name = "demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare ``--output``."""
        parser.add_argument(
            "-o",
            "--output",
            metavar="FOLDER",
            type=Path,
            default=Path("zprof-demo"),
            help="output folder for the runs (default: %(default)s)",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Record A and B and diagnose B; record C and show that the fix works."""
        from zprof.integrations.demo_scenes import BASELINE, FIXED, SLOWER
        from zprof.reports.presenters.report import build_report_page

        require_extra(Extra.RECORD, "demo")
        folder: Path = arguments.output
        console.print_data(_INTRODUCTION)
        _record(folder, (BASELINE, SLOWER))
        slower = _diagnose_scene(folder, SLOWER, BASELINE)
        console.print_page(build_report_page(slower))
        console.print_data("\n")
        _record(folder, (FIXED,))
        reports = (_diagnose_scene(folder, BASELINE), slower, _diagnose_scene(folder, FIXED))
        console.print_page(_build_summary((BASELINE, SLOWER, FIXED), reports))
        console.print_data("\n")
        console.print_data(_list_next_commands(folder))
        return 0


def _record(folder: Path, scenes: Sequence["Scene"]) -> None:
    from zprof.integrations.reference_job import train_reference
    from zprof.run.output_path import replace_run

    for scene in scenes:
        job = scene.make_job(folder)
        assert job.run is not None
        replaced = replace_run(job.run, force=True)
        with replaced, steps_progress(f"{scene.letter}  {scene.title}", job.recorded_steps) as on_step:
            train_reference(job, on_step=on_step)


def _diagnose_scene(folder: Path, scene: "Scene", baseline: "Scene | None" = None) -> "Report":
    from zprof.rules.diagnose import diagnose
    from zprof.run.reader import load

    run = load(folder / f"{scene.run}.zprof")
    return diagnose(run, load(folder / f"{baseline.run}.zprof") if baseline else None)


def _build_summary(scenes: Sequence["Scene"], reports: Sequence["Report"]) -> "Page":
    from zprof.model.formatting import format_bytes, format_ns, format_percent
    from zprof.reports.presenters.memory_formatting import peak_bytes
    from zprof.reports.presenters.small_pages import build_demo_page
    from zprof.reports.presenters.time_figures import exposure, step_ns

    rows = []
    for scene, report in zip(scenes, reports, strict=True):
        ratio = exposure(report.time.per_rank).ratio
        rows.append(
            (
                f"{scene.letter}  {scene.title}",
                format_ns(step_ns(report.time.per_rank)),
                "unknown" if ratio is None else format_percent(ratio),
                format_bytes(peak_bytes(report.memory.per_rank)) if report.memory.per_rank else "unknown",
            )
        )
    return build_demo_page(rows)


def _list_next_commands(folder: Path) -> str:
    return (
        "next:\n"
        f"  zprof diagnose {folder}/zero3.zprof --baseline {folder}/ddp.zprof\n"
        f"  zprof compare {folder}/zero3.zprof {folder}/zero3-prefetch.zprof\n"
        f"  zprof report {folder}/zero3.zprof --baseline {folder}/ddp.zprof -f json\n"
        "  zprof train --help      try other stages, links and model sizes\n"
    )
