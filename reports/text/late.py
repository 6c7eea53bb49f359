"""Who the others waited for, in the text report."""

from zprof.model.printable import printable, shorten
from zprof.model.report import Report
from zprof.model.units import format_ms, format_ns, format_percent
from zprof.reports.shown.time_presenter import LateRank, late_ranks, per
from zprof.reports.text.layout import heading, table, wrap

_MOST = 4
_REASONS = 2
_WIDEST = 24


def late(report: Report) -> list[str]:
    """The ranks that came last, what that cost the others, and why they were late."""
    shares = report.time.blame
    if shares is None or report.run.world_size < 2:
        return []
    found = late_ranks(shares, _MOST)
    if not found:
        return []
    rows = [["rank", "caused", "with hidden", "ranks", "last in", "own wait", "because of"]]
    rows += [_row(entry) for entry in found]
    title = heading("LATE RANKS", f"ms {per(report.time)}, per waiting rank")
    return ["", title, *table(rows), *_rest(shares.tied_ns, shares.unjudged_ns)]


def _row(entry: LateRank) -> list[str]:
    blame = entry.blame
    return [
        str(blame.rank),
        format_ms(blame.exposed_wait_per_rank_ns),
        format_ms(blame.wait_per_rank_ns),
        str(blame.waiting_ranks),
        format_percent(blame.last_ratio),
        format_ms(blame.own_wait_ns),
        _because(entry),
    ]


def _because(entry: LateRank) -> str:
    reasons = [f"{printable(name)} {share * 100:.0f} %" for name, share in entry.reasons[:_REASONS]]
    return shorten(", ".join(reasons), _WIDEST).replace("_", " ") or "-"


def _rest(tied_ns: int, unjudged_ns: int) -> list[str]:
    """Waiting that nobody is blamed for."""
    parts = []
    if tied_ns:
        parts.append(f"{format_ns(tied_ns)} where the last two arrived within the doubt of the clocks")
    if unjudged_ns:
        parts.append(f"{format_ns(unjudged_ns)} not judged (first of a window, ranks missing, no match)")
    return wrap(f"nobody is blamed for {' and '.join(parts)}") if parts else []
