"""Build the short pages of single commands: doctor, verify, bundle, baseline, explain, demo."""

from collections.abc import Sequence

from zprof.base.formatting import format_bytes, format_ns, format_percent
from zprof.model.cache import CacheSummary
from zprof.model.comparison import ComparedRow, ComparedValue
from zprof.model.cursor import Cursor, read
from zprof.model.doctor import CheckStatus, Doctor
from zprof.model.findings import FAMILIES, read_index
from zprof.model.memory import RankMemory
from zprof.model.quantities import Unit, Value
from zprof.model.report import FigureStatus, RankVerification, Verification, VerifiedFigure
from zprof.model.time import RankTime
from zprof.reports.page import (
    Block,
    Facts,
    Item,
    ItemList,
    Note,
    Page,
    Paragraph,
    Section,
    VerdictBlock,
    make_section,
)
from zprof.reports.pages.ledger import exposure, step_ns
from zprof.reports.pages.tenants import largest_rank, peak_bytes
from zprof.reports.table import (
    UNKNOWN,
    Cell,
    format_cell,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_CHECK_MARKS = {CheckStatus.OK: "✓", CheckStatus.ABSENT: "-", CheckStatus.BROKEN: "✗"}
_FIGURE_WORDS = {
    FigureStatus.EQUAL: "equal",
    FigureStatus.DIFFERS: "DIFFERS",
    FigureStatus.UNKNOWN: "unknown",
}
_VERIFICATION_VERDICTS = {
    FigureStatus.EQUAL: VerdictBlock(tone="ok", mark="✓", text="Both agree: every common figure is equal."),
    FigureStatus.DIFFERS: VerdictBlock(tone="slower", mark="✗", text="Some figures differ."),
    FigureStatus.UNKNOWN: VerdictBlock(tone="inconclusive", mark="?", text="Nothing could be compared."),
}


def build_doctor_page(doctor: Doctor) -> Page:
    """Build the page on available features of this machine, and remedies for missing features."""
    broken = sum(check.status is CheckStatus.BROKEN for check in doctor.checks)
    absent = sum(check.status is CheckStatus.ABSENT for check in doctor.checks)
    optional = f"works; {absent} optional parts absent" if absent else "works"
    answer = f"{broken} broken, {absent} absent" if broken else optional
    verdict = VerdictBlock(
        tone="risk" if broken else "ok",
        mark="✗" if broken else "✓",
        text=f"zprof {doctor.zprof_version}: {answer}",
    )
    checks = ItemList(
        items=tuple(
            Item(
                mark=_CHECK_MARKS[check.status],
                label=check.name,
                text=check.found,
                remedy=check.remedy,
                details=(("without it", check.without),) if check.without else (),
            )
            for check in doctor.checks
        )
    )
    return _make_page("zprof doctor", verdict, *make_section("checks", "Checks", "", checks))


def build_cache_page(summary: CacheSummary) -> Page:
    """Build the page on the contents of the cache, or on removed entries."""
    size = format_bytes(sum(use.bytes for use in summary.kinds))
    if not summary.folder:
        text = "nothing is kept: there is no home folder"
    else:
        text = f"{size} {'removed from' if summary.is_removed else 'in'} {summary.folder}"
    rows = [
        (
            use.kind.value,
            Value(use.entries, Unit.COUNT),
            Value(use.bytes, Unit.BYTES),
            Value(use.max_bytes, Unit.BYTES),
        )
        for use in summary.kinds
    ]
    columns = (make_text_column("kind"), *make_number_columns("entries", "size", "limit"))
    title = "Removed" if summary.is_removed else "Kept"
    table = make_table(title, columns, rows)
    verdict = VerdictBlock(tone="ok", mark="✓", text=text)
    return _make_page("zprof cache", verdict, *make_section("kept", title, "", table))


def build_verification_page(found: Verification) -> Page:
    """Build the page that compares two tools' figures for a trace, with gaps."""
    about = (
        f"zprof {found.zprof_version} compared with {found.source}, {found.window}; HTA with {found.settings}"
    )
    head = Paragraph(text=about)
    sections = [_build_rank_section(rank, found.source) for rank in found.ranks]
    items = []
    for gap in found.gaps:
        where = "" if gap.rank is None else f"rank {gap.rank}: "
        items.append(Item(mark="?", label=f"{where}{gap.what}", text=gap.reason, remedy=gap.remedy))
    return _make_page(
        "zprof verify",
        _VERIFICATION_VERDICTS[found.status],
        head,
        *(section for rank_sections in sections for section in rank_sections),
        *make_section("gaps", "Not compared", "", ItemList(items=tuple(items)) if items else None),
    )


def _build_rank_section(rank: RankVerification, source: str) -> tuple[Section, ...]:
    table = make_table(
        f"Rank {rank.rank}",
        (
            make_text_column("figure"),
            *make_number_columns("zprof", source, "difference", "tolerance", unit="µs"),
            make_text_column("result"),
        ),
        [_format_figure_row(figure) for figure in rank.figures],
        unit="µs",
        note=f"{rank.device_rows} device events",
        notes=rank.reasons,
    )
    return make_section(f"rank-{rank.rank}", f"Rank {rank.rank}", "", table)


def _format_figure_row(figure: VerifiedFigure) -> tuple[str, ...]:
    values = (figure.zprof, figure.other, figure.difference, figure.tolerance)
    is_percent = figure.unit == "percent"
    shown = (
        "-" if value is None else _format_verified_number(value, is_percent=is_percent) for value in values
    )
    name = f"{figure.name} %" if is_percent else figure.name
    return (name, *shown, _FIGURE_WORDS[figure.status])


def _format_verified_number(value: float, *, is_percent: bool) -> str:
    """Format microseconds like other tools, or hundredths of a percent."""
    text = f"{value:.2f}" if is_percent else f"{value / 1000:.3f}"
    return text if text.strip("-0.") else text.lstrip("-")


def build_bundle_page(parts: Sequence[tuple[str, str, int]], replaced: int, left_out: Sequence[str]) -> Page:
    """Build the page on a bundle's contents, for review before sharing.

    ``parts``: name, description and bytes of each; ``replaced``: number of anonymized names; ``left_out``:
    omitted keys and tables.
    """
    rows = [(f"{name}: {what}", Value(size, Unit.BYTES)) for name, what, size in parts]
    names = f"{replaced} names of modules, groups, hosts and runs were anonymized."
    blocks: list[Block | None] = [
        make_table(
            "Bundle",
            (make_name_column("part"), *make_number_columns("size", unit="bytes")),
            rows,
            max_text_rows=200,
        ),
        Note(text=f"{names} The only text in the bundle is zprof's own."),
        Note(text=f"Left out: {', '.join(left_out)}.") if left_out else None,
    ]
    return _make_page("zprof bundle", *make_section("bundle", "Bundle", "", *blocks))


def build_baseline_page(name: str, rows: Sequence[ComparedRow]) -> Page:
    """Build the page on a baseline's figures, which are side ``b`` of the rows."""
    facts = Facts(rows=tuple((row.name, _format_side(row.b, row.unit)) for row in rows if row.b is not None))
    return _make_page("zprof baseline", *make_section("figures", "Baseline", "", facts, note=name))


def build_changes_page(rows: Sequence[ComparedRow]) -> Page:
    """Build the page on changed figures: before, after and change."""
    if not rows:
        return _make_page("zprof baseline", Paragraph(text="Nothing changes."))
    cells = [
        (
            row.name,
            _make_cell(row.a, row.unit),
            _make_cell(row.b, row.unit),
            _baseline_change(row),
        )
        for row in rows
        if row.unit != "text"
    ]
    columns = (make_name_column("figure"), *make_number_columns("before", "after", "change"))
    texts = tuple(
        (row.name, f"{_format_side(row.a, row.unit)} -> {_format_side(row.b, row.unit)}")
        for row in rows
        if row.unit == "text"
    )
    title = "What changes"
    table = make_table(title, columns, cells, max_text_rows=200)
    facts = Facts(rows=texts) if texts else None
    return _make_page("zprof baseline", *make_section("changes", title, "", table, facts))


def _format_side(value: ComparedValue, unit: str) -> str:
    return format_cell(_make_cell(value, unit))


def _make_cell(value: ComparedValue, unit: str) -> Cell:
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else Value(value, Unit(unit))


def _baseline_change(row: ComparedRow) -> str:
    if not isinstance(row.a, int | float) or not isinstance(row.b, int | float):
        return "-"
    if row.unit == "ratio":
        return f"{(row.b - row.a) * 100:+.1f} pt"
    return f"{(row.b / row.a - 1) * 100:+.1f} %" if row.a else "-"


def build_finding_list_page() -> Page:
    """Build the page on all causes by family, with their meanings."""
    sections: list[Section] = []
    for family, title in FAMILIES.items():
        items = tuple(
            Item(label=f"{entry.id} {entry.name}", text=entry.meaning)
            for entry in read_index()
            if entry.id.startswith(family)
        )
        sections += make_section(family.lower(), title, "", ItemList(items=items))
    return _make_page("zprof explain", *sections)


def build_demo_page(
    fix: str,
    runs: Sequence[tuple[str, Sequence[RankTime], Sequence[RankMemory]]],
    *,
    is_modelled: bool,
) -> Page:
    """Build the page on the gain from a demo's fix; the last run has the fix, the run before does not.

    ``runs``: title, and times and memory by rank, of each run.
    """
    timed = any(times for _, times, _ in runs)
    names = ("step", "exposed communication", "peak memory") if timed else ("peak memory",)
    rows: list[tuple[Cell, ...]] = []
    for title, times, memory in runs:
        rank = largest_rank(memory)
        peak = read(Cursor(rank).peak_bytes) if rank else UNKNOWN
        rows.append((title, *(_make_times(times) if timed else ()), peak))
    table = make_table(
        "Runs",
        (make_text_column("run"), *make_number_columns(*names)),
        rows,
        note="link and compute modelled" if is_modelled else "",
    )
    (_, old_times, old_memory), (_, times, memory) = runs[-2:]
    win = UNKNOWN  # time per step, or memory if no step was timed
    if old_times and times:
        old_ns, new_ns = step_ns(old_times), step_ns(times)
        win = f"{format_ns(old_ns - new_ns)} per step, {format_percent((old_ns - new_ns) / old_ns)}"
    elif old_memory and memory:
        old_bytes = peak_bytes(old_memory)
        saved = old_bytes - peak_bytes(memory)
        win = f"{format_bytes(saved)} of the peak, {format_percent(saved / old_bytes)}"
    facts = Facts(rows=(("fix", fix), ("wins", win)))
    return _make_page("zprof demo", *make_section("outcome", "Does the fix work?", "", facts, table))


def _make_times(times: Sequence[RankTime]) -> tuple[Cell, Cell]:
    """Return step and exposed communication as means over ranks."""
    if not times:
        return UNKNOWN, UNKNOWN
    exposed = exposure(times)
    return Value(step_ns(times), Unit.NS), Value(exposed.exposed_ns, Unit.NS, bound=exposed.bound)


def _make_page(kind: str, *parts: Block | Section) -> Page:
    return Page(
        kind=kind,
        subject="",
        head=tuple(part for part in parts if not isinstance(part, Section)),
        sections=tuple(part for part in parts if isinstance(part, Section)),
        made_by="zprof",
        data_command=f"{kind} -f json",
    )
