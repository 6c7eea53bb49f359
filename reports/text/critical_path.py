"""The chain of work that a step could not be shorter than, in the text report."""

from zprof.model.printable import printable
from zprof.model.report import Report
from zprof.model.units import format_ms, format_percent
from zprof.reports.shown.path_presenter import PathRank, path_kinds, path_ranks
from zprof.reports.shown.time_presenter import per
from zprof.reports.text.layout import heading, table, wrap

_MOST_RANKS = 4
_MOST_KINDS = 4
_WORTH_RATIO = 0.005


def critical_path(report: Report) -> list[str]:
    """Through which ranks it goes and with what; nothing where there is one rank."""
    path = report.time.critical_path
    if path is None or not path.shares or report.run.world_size < 2:
        return []
    ranks = path_ranks(path)
    rows = [["rank", "on it", "share", "with"], *(_row(entry) for entry in ranks[:_MOST_RANKS])]
    left = sum(entry.ns for entry in ranks[_MOST_RANKS:])
    rest = f"; {len(ranks) - _MOST_RANKS} other ranks {format_ms(left)} ms" if left else ""
    kinds = [
        f"{printable(kind)} {format_percent(share)}"
        for kind, share in path_kinds(path)[:_MOST_KINDS]
        if share >= _WORTH_RATIO
    ]
    return [
        "",
        heading("CRITICAL PATH", f"ms {per(report.time)}: what it could not be shorter than"),
        *table(rows),
        *wrap(f"in all {', '.join(kinds)}{rest}"),
    ]


def _row(entry: PathRank) -> list[str]:
    parts = [
        f"{printable(kind)} {format_ms(length)}"
        for kind, length in entry.kinds[:_MOST_KINDS]
        if length >= _WORTH_RATIO * entry.ns
    ]
    return [str(entry.rank), format_ms(entry.ns), format_percent(entry.share), ", ".join(parts)]
