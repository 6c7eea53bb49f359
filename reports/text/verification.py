"""Two programs' figures of the same trace, side by side, as plain text in 80 columns."""

from collections.abc import Sequence

from zprof.model.gaps import Gap
from zprof.model.printable import printable
from zprof.model.verification import Figure, FigureStatus, RankVerification, Verification
from zprof.reports.escape_log import log_line
from zprof.reports.text.layout import heading, table, wrap

_MARKS = {FigureStatus.EQUAL: "equal", FigureStatus.DIFFERS: "DIFFERS", FigureStatus.UNKNOWN: "unknown"}
_ANSWERS = {
    FigureStatus.EQUAL: "Both agree: every figure that both have is equal.",
    FigureStatus.DIFFERS: "They differ.",
    FigureStatus.UNKNOWN: "Nothing could be compared.",
}


def render(found: Verification) -> str:
    """The answer, each rank's figures with the reasons, and what could not be compared."""
    source = printable(found.source)
    lines = [_ANSWERS[found.status]]
    lines += wrap(f"zprof {found.zprof_version} beside {source}, {found.window}; HTA with {found.settings}")
    for rank in found.ranks:
        lines += ["", *_rank(rank, source)]
    lines += _gaps(found.gaps)
    return "\n".join(log_line(printable(line)) for line in lines) + "\n"


def _rank(rank: RankVerification, source: str) -> list[str]:
    cells = [["", "zprof", source, "difference", "within", ""]]
    cells += [_cells(figure) for figure in rank.figures]
    title = heading(f"RANK {rank.rank}", f"{rank.device_rows} rows of the device; times in µs")
    reasons = [line for reason in rank.reasons for line in wrap(printable(reason), first="  - ")]
    return [title, *table(cells), *reasons]


def _cells(figure: Figure) -> list[str]:
    values = (figure.zprof, figure.other, figure.difference, figure.tolerance)
    percent = figure.unit == "percent"
    shown = ["-" if value is None else _number(value, percent=percent) for value in values]
    name = f"{figure.name} %" if percent else figure.name
    return [name, *shown, _MARKS[figure.status]]


def _number(value: float, *, percent: bool) -> str:
    """Microseconds as other programs show them, and hundredths of a percent."""
    text = f"{value:.2f}" if percent else f"{value / 1000:.3f}"
    return text if text.strip("-0.") else text.lstrip("-")


def _gaps(gaps: Sequence[Gap]) -> list[str]:
    if not gaps:
        return []
    lines = ["", heading("NOT COMPARED")]
    for gap in gaps:
        where = "" if gap.rank is None else f"rank {gap.rank}: "
        lines += wrap(printable(f"{where}{gap.what}: {gap.reason}; {gap.remedy}"), first="  ? ")
    return lines
