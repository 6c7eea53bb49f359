"""``RUN`` and ``--baseline FILE|RUN`` of a check: a run measured, and what it is held against."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.opening import open_run
from zprof.cli.options.training_facts import stated
from zprof.model.errors import BadInput

if TYPE_CHECKING:
    from zprof.model.baseline import Baseline
    from zprof.model.report import Report

#: What ``zprof baseline save`` writes where it is not told.
BASELINE_FILE = Path("zprof-baseline.json")
#: A saved baseline says its schema first.
_HEAD_BYTES = 4096
_MARK = b'"zprof.baseline/'


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The report of a run, and the ``environment`` of its manifest."""

    report: "Report"
    environment: Mapping[str, str]

    def baseline(self) -> "Baseline":
        """What is kept of it."""
        from zprof.checks.baseline import baseline_of

        return baseline_of(self.report, self.environment, self.report.run.name)


def measured(path: Path, arguments: argparse.Namespace) -> Measured:
    """The run at ``path`` with the training facts of the command line, diagnosed.

    Raises:
        BadInput: there is no run, or it is damaged.
        MissingData: no rank finished its recording.
    """
    from zprof.rules.diagnose import diagnose

    run = open_run(path)
    manifest = run.manifest
    run = run.described(stated(arguments, manifest.training, manifest.world_size))
    return Measured(report=diagnose(run), environment=manifest.environment)


def is_still_to_save(path: Path) -> bool:
    """Whether ``path`` names a saved baseline that is not there: the first run of a team."""
    try:
        return path.suffix.lower() == ".json" and not path.exists()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="name another baseline") from None


def is_saved(path: Path) -> bool:
    """Whether ``path`` is a file that ``zprof baseline save`` wrote, and no run or trace."""
    from zprof.run.plain_file import open_plain

    try:
        with open_plain(path) as file:
            return _MARK in file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return False


def baseline_at(path: Path, arguments: argparse.Namespace) -> "Baseline":
    """A saved baseline, or that of a run or a trace.

    Raises:
        BadInput: it is neither.
        MissingData: no rank finished its recording.
    """
    from zprof.checks.baseline import read_baseline

    if is_saved(path):
        return read_baseline(path)
    try:
        return measured(path, arguments).baseline()
    except BadInput as error:
        if path.suffix.lower() != ".json":
            raise
        raise BadInput(
            f"{error.message}; and it is no saved baseline", hint="make one: zprof baseline save RUN -o FILE"
        ) from None
