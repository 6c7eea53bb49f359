"""Open the RUN and ``--baseline`` arguments: a recording, a saved baseline, or files to import."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from zprof.cli import console
from zprof.cli.shared_options import add_stated_facts
from zprof.model.errors import BadInput
from zprof.model.formatting import printable

if TYPE_CHECKING:
    from zprof.model.baseline import Baseline
    from zprof.model.report import Report
    from zprof.run.reader import Run


def open_run(path: Path) -> "Run":
    """Return the run at ``path``, with at least one readable rank.

    Kineto traces and CUDA memory snapshots, or folders of them, are imported into the user's cache folder.

    Raises:
        BadInput: there is neither a run nor a file to import, or it is damaged.
        MissingData: no rank finished its recording.
    """
    from zprof.cli.progress import import_progress
    from zprof.integrations.imports.run_folder import find_run_folder, refuse_empty
    from zprof.run.reader import Run

    run = Run(find_run_folder(path, _print_import_note, import_progress))
    refuse_empty(run, path)
    return run


def open_run_and_baseline(arguments: argparse.Namespace) -> "tuple[Run, Run | None]":
    """Return the run and its baseline, if one is given; a note says so if both look like ranks of one job.

    Raises:
        BadInput: one of them is missing or damaged.
        MissingData: no rank of one of them finished its recording.
    """
    run = open_run(arguments.run)
    baseline = open_run(arguments.baseline) if arguments.baseline is not None else None
    if baseline is not None and _are_ranks_of_one_job(run, baseline):
        console.print_note(
            f"zprof: {printable(arguments.baseline)} is taken as the baseline; "
            "to read rank files as one job, pass their folder as RUN"
        )
    return run, baseline


def _are_ranks_of_one_job(run: "Run", baseline: "Run") -> bool:
    """Return True for two imported files with one rank each, which differs, of jobs of equal size."""
    runs = (run, baseline)
    return (
        all(entry.manifest.source != "recording" and len(entry.ranks) == 1 for entry in runs)
        and run.ranks != baseline.ranks
        and run.manifest.world_size == baseline.manifest.world_size > 1
    )


def _print_import_note(text: str) -> None:
    console.print_note(f"zprof: {printable(text)}")


#: Default output of ``zprof baseline save``.
BASELINE_FILE = Path("zprof-baseline.json")
#: A saved baseline starts with its schema.
_HEAD_BYTES = 4096
_SCHEMA_PREFIX = b'"zprof.baseline/'


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """The report of a run, and the ``environment`` of its manifest."""

    report: "Report"
    environment: Mapping[str, str]

    def baseline(self) -> "Baseline":
        """Return the baseline of this run."""
        from zprof.checks.baseline import make_baseline

        return make_baseline(self.report, self.environment, self.report.run.name)


def measure_run(path: Path, arguments: argparse.Namespace) -> MeasuredRun:
    """Diagnose the run at ``path`` with the training facts of the command line.

    Raises:
        BadInput: there is no run, or it is damaged.
        MissingData: no rank finished its recording.
    """
    from zprof.rules.diagnose import diagnose

    run = open_run(path)
    manifest = run.manifest
    run = run.described(add_stated_facts(arguments, manifest.training, manifest.world_size))
    return MeasuredRun(report=diagnose(run), environment=manifest.environment)


def is_missing_baseline(path: Path) -> bool:
    """Return True if ``path`` is the name of a baseline file that does not exist yet."""
    try:
        return path.suffix.lower() == ".json" and not path.exists()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="choose another baseline") from None


def is_saved_baseline(path: Path) -> bool:
    """Return True if ``path`` is a file from ``zprof baseline save``, as opposed to a run or a trace."""
    from zprof.run.plain_file import open_plain

    try:
        with open_plain(path) as file:
            return _SCHEMA_PREFIX in file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return False


def load_baseline(path: Path, arguments: argparse.Namespace) -> "Baseline":
    """Return a saved baseline, or the baseline of a run or a trace.

    Raises:
        BadInput: ``path`` is neither.
        MissingData: no rank finished its recording.
    """
    from zprof.checks.baseline import read_baseline

    if is_saved_baseline(path):
        return read_baseline(path)
    try:
        return measure_run(path, arguments).baseline()
    except BadInput as error:
        if path.suffix.lower() != ".json":
            raise
        raise BadInput(
            f"{error.message}; it is not a saved baseline either",
            hint="create one: zprof baseline save RUN -o FILE",
        ) from None
