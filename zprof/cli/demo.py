"""``zprof demo``: reproduce a typical support case on this machine."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.base.errors import Extra, require_extra
from zprof.cli import console
from zprof.cli.progress import steps_progress

if TYPE_CHECKING:
    from zprof.analysis.analysis import RunAnalysis
    from zprof.integrations.demo_scenes import DemoCase, Scene

_REAL = "The {ranks} ranks, the engine, the collectives (gloo) and the memory are real."
_MODELLED = "Link speed and\ncompute time per block are MODELLED, so that overlap shows on two cores."


class DemoCommand:
    """Reproduce a typical support case: the problem, how to see it, and the gain of the fix.

    Trains a small GPT-2-shaped model on two ranks, in the reported form and with the fix,
    records both, and prints the diagnosis. Each case takes less than a minute. Does not
    need a GPU.

    examples:
      zprof demo                       the first case: slower after sharding
      zprof demo --list
      zprof demo late-rank
      zprof demo -o /tmp/zprof-demo
    """

    name = "demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the case and ``--output``."""
        parser.add_argument(
            "case", metavar="NAME", nargs="?", help="support case (default: slower-after-sharding)"
        )
        parser.add_argument("--list", action="store_true", help="list the support cases")
        parser.add_argument(
            "-o",
            "--output",
            metavar="FOLDER",
            type=Path,
            default=Path("zprof-demo"),
            help="output folder for the runs (default: %(default)s)",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """List the cases, or play one."""
        from zprof.integrations.demo_scenes import CASES, find_case

        if arguments.list:
            width = max(len(case.name) for case in CASES)
            console.print_data("".join(f"{case.name:<{width}}  {case.title}\n" for case in CASES))
            return 0
        case = CASES[0] if arguments.case is None else find_case(arguments.case)
        require_extra(Extra.RECORD, "demo")
        from zprof.diagnosis.diagnose import diagnose
        from zprof.reports.pages.diagnosis import build_diagnosis_page
        from zprof.reports.pages.small_pages import build_demo_page

        console.print_data(_introduce(case))
        baseline = _record(arguments.output, case.baseline) if case.baseline else None
        faulty = _record(arguments.output, case.faulty)
        console.print_page(build_diagnosis_page(diagnose(faulty, baseline)))
        console.print_data("\n")
        fixed = _record(arguments.output, case.fixed)
        runs = ((case.baseline, baseline), (case.faulty, faulty), (case.fixed, fixed))
        shown = [
            (f"{scene.letter}  {scene.title}", analysis.time.per_rank, analysis.memory.per_rank)
            for scene, analysis in runs
            if scene is not None and analysis is not None
        ]
        console.print_page(build_demo_page(case.fix, shown, is_modelled=case.is_modelled))
        console.print_data("\n")
        console.print_data("\n  ".join(("next:", *_list_next_commands(case, arguments.output))) + "\n")
        return 0


def _introduce(case: "DemoCase") -> str:
    from zprof.integrations.demo_scenes import RANKS

    how = _REAL.format(ranks=RANKS) + (f" {_MODELLED}" if case.is_modelled else "")
    return f'"{case.question}"\n\n{how}\n\n'


def _record(folder: Path, scene: "Scene") -> "RunAnalysis":
    from zprof.analysis.analysis import analyse
    from zprof.integrations.reference_job import train_reference
    from zprof.run.output_path import replace_run
    from zprof.run.reader import load

    job = scene.make_job(folder)
    path = scene.get_path(folder)
    replaced = replace_run(path, force=True)
    with replaced, steps_progress(f"{scene.letter}  {scene.title}", job.recorded_steps) as on_step:
        train_reference(job, on_step=on_step)
    return analyse(load(path))


def _list_next_commands(case: "DemoCase", folder: Path) -> Sequence[str]:
    """List the commands that show more; the last one opens the run in a terminal."""
    faulty, fixed = case.faulty.get_path(folder), case.fixed.get_path(folder)
    compared = f"{faulty} {case.baseline.get_path(folder)}" if case.baseline else str(faulty)
    return (
        f"zprof diagnose {fixed} {faulty}",
        "zprof demo --list      the other support cases",
        f"zprof tui {compared}",
    )
