"""Add HTA's critical path and idle times of each GPU rank to the report."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from zprof.collectors.read.imports.origin import read_origin
from zprof.integrations.hta.answers import (
    Critical,
    HtaAnswers,
    IdleRow,
    Rows,
    find_unanswered,
)
from zprof.integrations.hta.process import ask_all, format_source_name
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.report import HtaCriticalPath, RankOpinion, Report, SecondOpinion, StreamIdle

_QUESTIONS = ("rows", "idle", "critical")


def add_second_opinion(report: Report, run: Path, wall_s: float | None = None) -> Report:
    """Add HTA's results for the traces from which ``run`` was imported to the report, or gaps."""
    files = read_origin(run) if report.run.source == "trace" else None
    if files is None:
        return replace(report, gaps=(*report.gaps, make_gap("hta_without_trace")))
    loaded_files = {rank: path for rank, path in files.items() if rank in report.run.ranks_loaded}
    opinion, gaps = ask_second_opinion(loaded_files, wall_s)
    return replace(report, second_opinion=opinion, gaps=(*report.gaps, *gaps))


def ask_second_opinion(
    files: Mapping[int, Path], wall_s: float | None = None
) -> tuple[SecondOpinion | None, list[Gap]]:
    """Return HTA's results for each rank, None if there are none, and gaps for failures."""
    answers = ask_all(files, _QUESTIONS, wall_s)
    results = [_make_rank_opinion(rank, answers[rank]) for rank in sorted(answers)]
    opinions = [opinion for opinion, _ in results if opinion is not None]
    gaps = [gap for _, rank_gaps in results for gap in rank_gaps]
    if not opinions:
        return None, gaps
    return SecondOpinion(source=format_source_name(answers.values()), per_rank=tuple(opinions)), gaps


def _make_rank_opinion(rank: int, answers: HtaAnswers) -> tuple[RankOpinion | None, list[Gap]]:
    rows = answers.get("rows", Rows)
    if rows is not None and not rows.device:
        return None, [make_gap("hta_without_device_work", rank=rank)]
    idle, critical = answers.get("idle", list[IdleRow]), answers.get("critical", Critical)
    gaps = find_unanswered(rank, answers, ("idle", "critical"))
    if idle is None and critical is None:
        return None, gaps
    path = None
    if critical is not None:
        window = f"{critical.steps} of {critical.steps_seen} steps" if critical.steps_seen else "entire trace"
        path = HtaCriticalPath(window=window, length_ns=critical.length_ns, shares=critical.shares)
    opinion = RankOpinion(
        rank=rank,
        critical_path=path,
        idle=None
        if idle is None
        else tuple(
            StreamIdle(
                stream=row.stream,
                host_wait_ns=row.host_wait_ns,
                kernel_wait_ns=row.kernel_wait_ns,
                other_ns=row.other_ns,
            )
            for row in idle
        ),
    )
    return opinion, gaps
