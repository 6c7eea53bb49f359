"""Measures raw traces with zprof and with HTA, in the same window: the whole trace, each rank by itself."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zprof.analysis.time.totals import DeviceTotals, device_totals
from zprof.integrations.hta.answers import Answers
from zprof.integrations.hta.comparison import QUESTIONS, compare
from zprof.integrations.hta.parent import ask_all, source_name
from zprof.integrations.importing import import_paths
from zprof.model.errors import BadInput, MissingData
from zprof.model.gaps import Gap
from zprof.model.verification import Verification
from zprof.run.manifest import MANIFEST_NAME
from zprof.run.reader import load
from zprof.version import __version__

_SETTINGS = "HTA_DISABLE_NS_ROUNDING=1, include_last_profiler_step=True"


def verify(
    path: Path,
    *,
    ranks: frozenset[int] | None = None,
    wall_s: float | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Both figures of the ranks (all, where not given) of the trace, or folder of traces, at ``path``.

    ``wall_s`` bounds HTA's time for one rank.  ``note`` is told what the import says.

    Raises:
        BadInput: it is no trace, or lacks a rank that is asked for.
        MissingData: it is a run, which holds no trace that HTA could read.
    """
    if (path / MANIFEST_NAME).exists():
        raise MissingData(
            f"{path}: a run, which keeps no trace that HTA could read",
            hint="give the trace (.json, .json.gz), or the folder of traces, that it was made of",
        )
    with tempfile.TemporaryDirectory(prefix="zprof-verify-") as folder:
        imported = import_paths([path], Path(folder) / "trace.zprof")
        for said in imported.notes:
            note(said)
        run = load(imported.run)
        if run.manifest.source != "trace":
            raise BadInput(
                f"{path}: no trace, a {run.manifest.source}", hint="give a Kineto trace (.json, .json.gz)"
            )
        files = _chosen({file.rank: file.path for file in imported.files}, ranks)
        totals, gaps = device_totals(run, tuple(files))
    measured = {entry.rank: entry for entry in totals}
    answers = ask_all({rank: files[rank] for rank in measured}, QUESTIONS, wall_s)
    return _verification(measured, answers, [gap for gap in gaps if gap.rank in files])


def _verification(
    measured: Mapping[int, DeviceTotals], answers: Mapping[int, Answers], gaps: Sequence[Gap]
) -> Verification:
    compared = [compare(entry, answers[rank]) for rank, entry in sorted(measured.items())]
    return Verification(
        zprof_version=__version__,
        source=source_name(answers.values()),
        settings=_SETTINGS,
        window="whole trace",
        ranks=tuple(rank for rank, _ in compared),
        gaps=(*gaps, *(gap for _, found in compared for gap in found)),
    )


def _chosen(files: Mapping[int, Path], ranks: frozenset[int] | None) -> dict[int, Path]:
    absent = (ranks or frozenset()) - set(files)
    if absent:
        raise BadInput(
            f"no trace of rank {min(absent)}", hint=f"there are {len(files)}, from {min(files)} on"
        )
    return {rank: path for rank, path in files.items() if ranks is None or rank in ranks}
