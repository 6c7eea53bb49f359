"""Open the RUN and ``--baseline`` arguments: a recording, a saved baseline, or files to import."""

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zprof.base.errors import BadInput, MissingData
from zprof.base.formatting import printable
from zprof.cli import console
from zprof.cli.shared_options import add_stated_facts

if TYPE_CHECKING:
    from zprof.model.baseline import Baseline
    from zprof.model.report import Report
    from zprof.model.time import WindowPolicy
    from zprof.run.reader import Run


def refuse_missing(*paths: Path | None) -> None:
    """Reject a missing path before a command imports its dependencies.

    Raises:
        BadInput: A path does not exist.
    """
    for path in paths:
        try:
            exists = path is None or path.exists()
        except (OSError, ValueError):
            return  # opening it reports what is wrong
        if path is not None and not exists:
            from zprof.base.errors import make_missing_error

            raise make_missing_error(path)


def open_run(path: Path, *, is_analysed: bool = True) -> "Run":
    """Return the run at ``path``, with at least one readable rank.

    Kineto traces and CUDA memory snapshots, or folders of them, are imported into the user's cache folder.
    While other processes read them, this process imports the analysis if the run ``is_analysed``: call this
    before importing it.

    Raises:
        BadInput: There is neither a run nor a file to import, or it is damaged.
        MissingData: No rank finished its recording.
    """
    refuse_missing(path)
    from zprof.cli.progress import import_progress
    from zprof.collectors.read.imports.run_folder import find_run_folder, refuse_empty
    from zprof.run.reader import Run

    while_reading = _import_analysis if is_analysed else None
    run = Run(find_run_folder(path, _print_import_note, import_progress, while_reading))
    refuse_empty(run, path)
    return run


def open_dumps(paths: Sequence[Path]) -> "Run":
    """Return the run of several related files, or the run at a single path.

    Raises:
        BadInput: There is neither a run nor a file to import, or it is damaged.
        MissingData: No rank can be loaded.
    """
    if len(paths) == 1:
        return open_run(paths[0])
    refuse_missing(*paths)
    from zprof.cli.progress import import_progress
    from zprof.collectors.read.imports.cache import import_cached
    from zprof.collectors.read.imports.run_folder import refuse_empty
    from zprof.run.reader import Run

    with import_progress() as progress:
        run = Run(import_cached(paths, _print_import_note, progress, _import_analysis))
    refuse_empty(run, paths[0])
    return run


def _import_analysis() -> None:
    import_module("zprof.diagnosis.diagnose")


def open_run_and_baseline(arguments: argparse.Namespace) -> "tuple[Run, Run | None]":
    """Return the run and its baseline if given; print a note if both look like ranks of one job.

    Raises:
        BadInput: One of them is missing or damaged.
        MissingData: No rank of one of them finished its recording.
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
    """Return True for two imported files with one rank each, different ranks and equal job sizes."""
    runs = (run, baseline)
    return (
        all(entry.manifest.source != "recording" and len(entry.ranks) == 1 for entry in runs)
        and run.ranks != baseline.ranks
        and run.manifest.world_size == baseline.manifest.world_size > 1
    )


def refuse_unmeasured(report: "Report") -> None:
    """Reject a report without a figure to judge: nothing ran, no memory, no hang, no failed end, no finding.

    Raises:
        MissingData: Nothing was measured.
    """
    time = report.time
    ran = time.collectives or any(rank.wall_ns > rank.idle_ns + rank.unexplained_ns for rank in time.per_rank)
    excluded = time.window is not None and time.window.pre_window_ns > 0  # the page says how much
    if (
        ran
        or excluded
        or time.slowdown
        or time.communicators
        or report.memory.per_rank
        or report.hang
        or report.endings
        or report.findings
    ):
        return
    name = printable(report.run.name)
    if time.per_rank:
        raise MissingData(
            f"{name}: no operator, kernel or collective in it, so nothing was measured",
            hint="record with ProfilerActivity.CPU, and CUDA where there is a device",
        )
    device_gaps = [gap for gap in report.gaps if gap.kind in ("unknown_device", "device")]
    for gap in device_gaps[:1]:  # the other ranks' lanes are similar
        raise MissingData(f"{name}: {printable(gap.reason)}", hint=printable(gap.remedy))
    raise MissingData(
        f"{name}: neither times nor memory in it, so nothing was measured",
        hint="zprof doctor says what can be recorded here; let the recorded steps run to their end",
    )


def diagnose_or_recall(
    run: "Run",
    baseline: "Run | None" = None,
    *,
    expected_bus_bytes_per_s: float | None = None,
    policy: "WindowPolicy | None" = None,
) -> "Report":
    """Return the report on a run, from the cache if the same question was asked before.

    Raises:
        BadInput: A recording is damaged.
    """
    from zprof.cache.reports import answer, ask_diagnosis
    from zprof.model.time import WindowPolicy

    window = policy or WindowPolicy.STEP

    def make() -> "Report":
        from zprof.diagnosis.diagnose import diagnose

        return diagnose(run, baseline, expected_bus_bytes_per_s=expected_bus_bytes_per_s, policy=window)

    return answer(ask_diagnosis(run, baseline, expected_bus_bytes_per_s, window), make)


def _print_import_note(text: str) -> None:
    console.print_note(f"zprof: {printable(text)}")


#: Default output of ``zprof baseline save``.
BASELINE_FILE = Path("zprof-baseline.json")
#: A saved baseline starts with its schema.
_HEAD_BYTES = 4096
_SCHEMA_PREFIX = b'"zprof.baseline/'


class MeasuredRun(NamedTuple):
    """A run, its report, and the ``environment`` of its manifest."""

    run: "Run"
    report: "Report"
    environment: Mapping[str, str]

    def baseline(self) -> "Baseline":
        """Return the baseline of this run."""
        from zprof.checks.baseline import make_baseline

        return make_baseline(self.report, self.environment, self.report.run.name)


def measure_run(path: Path, arguments: argparse.Namespace) -> MeasuredRun:
    """Diagnose the run at ``path`` with the training facts of the command line.

    Raises:
        BadInput: There is no run, or it is damaged.
        MissingData: No rank finished its recording.
    """
    run = open_run(path)
    manifest = run.manifest
    run = run.described(add_stated_facts(arguments, manifest.training, manifest.world_size))
    return MeasuredRun(run=run, report=diagnose_or_recall(run), environment=manifest.environment)


def is_missing_baseline(path: Path) -> bool:
    """Return True if ``path`` looks like a baseline file that does not exist yet."""
    try:
        return path.suffix.lower() == ".json" and not path.exists()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="choose another baseline") from None


def is_saved_baseline(path: Path) -> bool:
    """Return True if ``path`` is a file from ``zprof baseline save``, as opposed to a run or a trace."""
    from zprof.run.files import open_plain

    try:
        with open_plain(path) as file:
            return _SCHEMA_PREFIX in file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return False


def load_baseline(path: Path, arguments: argparse.Namespace) -> "Baseline":
    """Return a saved baseline, or the baseline of a run or a trace.

    Raises:
        BadInput: ``path`` is none of these.
        MissingData: No rank finished its recording.
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
