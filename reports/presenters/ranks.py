"""Build the ranks section: late ranks and who waited for them, the ledger per rank, the critical path."""

from collections.abc import Iterator

from zprof.model.formatting import format_ms, format_ns, format_percent
from zprof.model.leaves import take_value
from zprof.model.quantities import Unit, Value
from zprof.model.report import Report
from zprof.model.time import LEDGER_NAMES, CriticalPath, RankTime
from zprof.reports.page import HeatMap, Note, Section, make_section
from zprof.reports.presenters.heat import Measured, heat_map
from zprof.reports.presenters.time_figures import (
    LateRank,
    PathRank,
    list_late_ranks,
    list_path_kinds,
    list_path_ranks,
    order_by_waiting,
    select_extreme_ranks,
)
from zprof.reports.presenters.time_formatting import (
    make_ledger_cells,
)
from zprof.reports.table import (
    MAX_ROWS,
    Cell,
    Column,
    Table,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_RANKS, _MAX_TEXT_LATE = 8, 4
_MAX_REASONS = 3
#: Smaller shares of the path are not listed.
_MIN_PATH_RATIO = 0.005


def build_rank_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty for a job of one rank, which the ledger section covers."""
    if report.run.world_size < 2:
        return ()
    path = build_critical_path_blocks(report)
    lead = "Which ranks were late, and which waited for them."
    return make_section(
        "ranks",
        "Ranks",
        lead,
        build_lateness_map(report),
        build_step_time_map(report),
        _build_rank_table(report),
        *_build_late_blocks(report),
        *path,
    )


def build_lateness_map(report: Report) -> HeatMap | None:
    """Build the map of how late each rank arrived at the collectives of each step."""
    time = report.time
    late = [Measured(rank=entry.rank, step=entry.step, ns=entry.mean_ns) for entry in time.lateness]
    uncertainty_ns = time.alignment.uncertainty_ns if time.alignment else None
    note = (
        ()
        if uncertainty_ns is None
        else (
            f"Values below {format_ns(uncertainty_ns)}, the uncertainty of the clocks, are not significant.",
        )
    )
    return heat_map(
        f"Lateness: start of collectives after the first rank of the group, mean {time.basis}", late, note
    )


def build_step_time_map(report: Report) -> HeatMap | None:
    """Build the map of the wall time of each step on each rank."""
    wall = [Measured(rank=entry.rank, step=entry.step, ns=entry.wall_ns) for entry in report.time.steps]
    return heat_map("Step time", wall)


def _build_rank_table(report: Report) -> Table | None:
    all_ranks = report.time.per_rank
    ranks = select_extreme_ranks(all_ranks, MAX_ROWS)
    return make_table(
        "By rank",
        (
            make_text_column("rank"),
            *make_number_columns("step", *LEDGER_NAMES.values(), unit="ms"),
            *make_number_columns("overlap", unit="%"),
        ),
        [_make_rank_row(rank) for rank in ranks],
        unit="ms",
        note=f"{report.time.basis}; overlap: hidden share of the collectives",
        max_text_rows=_MAX_TEXT_RANKS,
        order=order_by_waiting(ranks),
        total=len(all_ranks),
        noun="ranks, with the longest and shortest waits",
    )


def _make_rank_row(rank: RankTime) -> tuple[Cell, ...]:
    return (str(rank.rank), *make_ledger_cells(rank, rank.bounds), take_value(rank, "overlap_ratio"))


def _build_late_blocks(report: Report) -> Iterator[Table | Note | None]:
    shares = report.time.blame
    if shares is None:
        return
    late = list_late_ranks(shares, MAX_ROWS)
    yield make_table(
        "Late ranks",
        (
            make_text_column("rank"),
            *make_number_columns("wait caused", "incl. hidden", unit="ms"),
            Column(title="waiting ranks"),
            *make_number_columns("of all exposed waiting", unit="%", wide=True),
            *make_number_columns("arrived last", unit="%"),
            *make_number_columns("wait suffered", unit="ms"),
            make_text_column("cause"),
        ),
        [_make_late_row(entry) for entry in late],
        unit="ms",
        note=f"{report.time.basis}, per waiting rank",
        max_text_rows=_MAX_TEXT_LATE,
        total=len(shares.per_rank) if len(late) == MAX_ROWS else len(late),
        noun="ranks, largest wait caused first",
    )
    if not late:
        return
    if shares.tied_ns:
        tied = f"{format_ns(shares.tied_ns)} of waiting is not attributed to a rank: the last two arrived"
        yield Note(text=f"{tied} within the uncertainty of the clocks.")
    if shares.unjudged_ns:
        unjudged = f"{format_ns(shares.unjudged_ns)} of waiting was not evaluated"
        yield Note(text=f"{unjudged} (first collective of a window, missing ranks, no match).")


def _make_late_row(entry: LateRank) -> tuple[Cell, ...]:
    blame = entry.blame
    reasons = [f"{name.replace('_', ' ')} {part * 100:.0f} %" for name, part in entry.reasons[:_MAX_REASONS]]
    return (
        str(blame.rank),
        take_value(blame, "exposed_wait_per_rank_ns", in_ms=True),
        take_value(blame, "wait_per_rank_ns", in_ms=True),
        take_value(blame, "waiting_ranks"),
        Value(entry.share, Unit.RATIO),
        take_value(blame, "last_ratio"),
        take_value(blame, "own_wait_ns", in_ms=True),
        ", ".join(reasons) or "-",
    )


def build_critical_path_blocks(report: Report) -> tuple[Table | Note, ...]:
    """Build the table of ranks on the critical path and their activities; empty for one rank."""
    path = report.time.critical_path
    if path is None or not path.shares or report.run.world_size < 2:
        return ()
    path_entries = list_path_ranks(path)
    table = make_table(
        "Critical path",
        (
            make_text_column("rank"),
            *make_number_columns("time", unit="ms"),
            *make_number_columns("share", unit="%"),
            make_text_column("activity", unit="ms"),
        ),
        [_make_path_row(entry) for entry in path_entries],
        unit="ms",
        note=f"{report.time.basis}: what {'it' if report.time.is_whole else 'the step'} waited on, by rank",
        max_text_rows=_MAX_TEXT_LATE,
        noun="ranks, largest share first",
    )
    rest = path_entries[_MAX_TEXT_LATE:]
    others = f"; {len(rest)} other ranks: {format_ms(sum(rank.ns for rank in rest))} ms" if rest else ""
    note = Note(text=f"Entire path: {_join_path_kinds(path)}{others}.")
    return (*((table,) if table else ()), note)


def describe_critical_path(report: Report) -> Note | None:
    """Describe what the step waited on, of all ranks together; None for one rank."""
    path = report.time.critical_path
    if path is None or not path.shares or report.run.world_size < 2:
        return None
    return Note(text=f"Critical path: {_join_path_kinds(path)}.")


def _join_path_kinds(path: CriticalPath) -> str:
    return ", ".join(
        f"{kind} {format_percent(share)}" for kind, share in list_path_kinds(path) if share >= _MIN_PATH_RATIO
    )


def _make_path_row(entry: PathRank) -> tuple[Cell, ...]:
    parts = [f"{kind} {format_ms(ns)}" for kind, ns in entry.kinds if ns >= _MIN_PATH_RATIO * entry.ns]
    share = Value(entry.share, Unit.RATIO)
    return str(entry.rank), take_value(entry, "ns", in_ms=True), share, ", ".join(parts)
