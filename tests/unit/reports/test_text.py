"""Pages as text: 80 columns, nothing hostile, unknowns said, bounds marked."""

import unicodedata
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.diagnosis_reports import larger_batch
from tests.support.hostile_names import NAMES, poisoned
from tests.support.memories import HOSTILE, memory_of
from tests.support.plans import full, whatif
from tests.support.report_pages import PAGES
from tests.support.reports import SITUATIONS, memory_only, slower, snapshot, straggler, trace
from zprof.model.findings import Cause, Confidence
from zprof.model.formatting import display_width
from zprof.model.report import Report
from zprof.model.tenants import Tenant
from zprof.model.time import MessageSizes, RankTime, WindowPolicy
from zprof.reports.formats import page_text
from zprof.reports.page import Page, Paragraph, Section, Verdict
from zprof.reports.presenters.diagnosis import diagnosis_page
from zprof.reports.presenters.plan import plan_page
from zprof.reports.presenters.report import report_page
from zprof.reports.presenters.whatif import whatif_page

LONG = HOSTILE + "層" * 60 + "x" * 200
_STEERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def render(report: Report) -> str:
    return page_text(report_page(report))


def part(text: str, title: str) -> list[str]:
    """The lines under a heading, up to the next empty one."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(title))
    return lines[start + 1 : lines.index("", start) if "" in lines[start:] else None]


def hostile(make: Callable[[], Report]) -> Callable[[], Page]:
    def page() -> Page:
        report = poisoned(make(), LONG)
        return report_page(
            replace(report, findings=tuple(replace(f, cause=Cause.NO_PREFETCH) for f in report.findings))
        )

    return page


HOSTILE_PAGES: dict[str, Callable[[], Page]] = {
    **{f"{make.__name__}, hostile": hostile(make) for make in (slower, straggler, memory_only, trace)},
    "diagnosis, hostile": lambda: diagnosis_page(poisoned(larger_batch(), LONG)),
    "plan, hostile": lambda: plan_page(poisoned(full(), LONG), everything=True),
    "whatif, hostile": lambda: whatif_page(
        replace(whatif(), run=poisoned(whatif().run, LONG)), everything=True
    ),
}
SITUATION_PAGES = {name: lambda make=make: report_page(make()) for name, make in SITUATIONS.items()}  # type: ignore[misc]
EVERY_PAGE: dict[str, Callable[[], Page]] = {**PAGES, **SITUATION_PAGES, **HOSTILE_PAGES}


@pytest.mark.parametrize("name", EVERY_PAGE)
def test_fits_80_columns_and_steers_no_terminal(name: str) -> None:
    for line in page_text(EVERY_PAGE[name]()).removesuffix("\n").split("\n"):
        assert display_width(line) <= 80, line
        assert not [sign for sign in line if unicodedata.category(sign) in _STEERS], line
        assert not line.lstrip().startswith("::")


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_block_is_a_command_of_any_runner(name: str) -> None:
    blocks = (Verdict(tone="ok", mark="✓", text=name), Paragraph(text=name))
    section = Section(anchor="a", title=name, note=name, blocks=blocks)
    page = Page(kind=name, subject=name, head=blocks, sections=(section,), made_by="", data_command="")
    for line in page_text(page).splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line
        assert "##vso[" not in line


def test_the_answer_comes_first_and_unknowns_last() -> None:
    text = render(slower())
    assert text.startswith("✗ SLOWER 431.4 ms vs 243.9 ms a step, +77 % [")
    parts = ("MODELLED", "FINDINGS", "WHERE THE TIME GOES", "MEMORY AT EACH", "BY RANK", "NOT MEASURED (3)")
    places = [text.index(title) for title in parts]
    assert places == sorted(places)
    assert "→ " in text[text.index("NOT MEASURED") :]


def test_details_are_shown_where_the_other_side_is_missing() -> None:
    assert "BY STEP" in render(trace())
    assert "BY KIND" in render(memory_only())
    both = render(replace(trace(), memory=memory_only().memory))
    assert "BY STEP" not in both
    assert "BY KIND" not in both


def test_many_ranks_stay_readable() -> None:
    report = slower()
    time = replace(report.time, per_rank=report.time.per_rank * 32)
    lines = render(replace(report, comparison=None, memory=memory_of(3, ranks=64), time=time)).splitlines()
    assert any("4 of 64 ranks, those with the largest peaks" in line for line in lines)
    assert any("8 of 64 ranks, those that wait most" in line for line in lines)
    assert len(lines) < 110


def test_no_bar_and_no_number_for_what_is_unknown() -> None:
    text = render(SITUATIONS["nothing_timed"]())
    assert "WHERE THE TIME GOES" not in text
    assert "0.0" not in text


def test_a_guess_is_nothing_to_try_first() -> None:
    report = slower()
    guess = replace(report.findings[0], confidence=Confidence.LOW)
    assert "  try first: " in render(report)
    assert "  try first: " not in render(replace(report, findings=(guess,)))


@pytest.mark.parametrize(
    ("upper", "lower", "mark"), [(True, False, "≤ "), (False, True, "≥ "), (True, True, "≈ ")]
)
def test_a_peak_that_is_a_bound_is_marked(mark: str, *, upper: bool, lower: bool) -> None:
    report = slower()
    ranks = tuple(replace(r, upper_bound=upper, lower_bound=lower) for r in report.memory.per_rank)
    lines = render(replace(report, memory=replace(report.memory, per_rank=ranks))).splitlines()
    (line,) = [line for line in lines if line.startswith("  = allocated peak")]
    assert line.count(mark) == len(ranks)


def test_a_tenant_that_rules_did_not_find_is_unknown_and_not_zero() -> None:
    report = snapshot()
    rank = report.memory.per_rank[1]
    without = replace(rank, tenants={**rank.tenants, Tenant.GRADIENTS: 0})
    for found, shown in ((without, "-"), (replace(without, basis_bytes=None, parts=()), "0 B")):
        text = render(replace(report, memory=replace(report.memory, per_rank=(found,))))
        assert next(line for line in text.splitlines() if "gradients" in line).split(None, 1) == [
            "gradients",
            shown,
        ]


def test_an_exposed_time_that_is_an_upper_bound_is_said_to_be_one() -> None:
    report = slower()
    bound = tuple(replace(rank, upper_bound=True) for rank in report.time.per_rank)
    shown = render(replace(report, time=replace(report.time, per_rank=bound)))
    assert "at most" in shown
    assert "at least" in shown
    assert "at most" not in render(report)


def unsplit(ranks: tuple[RankTime, ...]) -> tuple[RankTime, ...]:
    return tuple(replace(rank, unsplit_ns=rank.exposed_transfer_ns + 1) for rank in ranks)


def test_steps_and_units_of_ranks_without_a_split_are_bounds() -> None:
    report = trace()
    unit = report.time.units[0]
    own = replace(report.time.collectives[0], kind=unit.kind, group=unit.group)
    time = replace(report.time, per_rank=unsplit(report.time.per_rank), collectives=(own,))
    text = render(replace(report, time=time))
    for title in ("BY STEP", "BY UNIT"):
        assert sum("≤ " in line and "≥ " in line for line in part(text, title)) >= 12
    entries = tuple(replace(entry, bound=False) for entry in report.time.collectives)
    sure = render(replace(report, time=replace(report.time, collectives=entries)))
    assert not [line for line in part(sure, "BY STEP") + part(sure, "BY UNIT") if "≤" in line or "≥" in line]


def test_each_side_of_a_comparison_has_its_own_bounds() -> None:
    report = slower()
    assert report.comparison is not None

    def transfer(report: Report) -> list[str]:
        return next(
            line for line in render(report).splitlines() if line.startswith("  exposed transfer")
        ).split()

    before = replace(report.comparison, baseline_time=unsplit(report.comparison.baseline_time))
    assert transfer(replace(report, comparison=before))[2] == "≤"
    after = replace(report, time=replace(report.time, per_rank=unsplit(report.time.per_rank)))
    assert transfer(after)[3] == "≤"
    assert "≤" not in transfer(report)


def test_a_size_that_the_trace_does_not_say_is_unknown_but_a_barrier_moves_nothing() -> None:
    report = trace()
    entries = tuple(replace(entry, bytes=0) for entry in report.time.collectives)
    units = tuple(replace(unit, bytes=0) for unit in report.time.units)
    bars = tuple(
        MessageSizes(
            kind=entry.kind, group=entry.group, at_least_bytes=0, below_bytes=1024, count=1.0,
            exposed_ns=1_000_000, busbw_bytes_per_s=None,
        )
        for entry in entries
    )  # fmt: skip
    text = render(replace(report, time=replace(report.time, collectives=entries, units=units, messages=bars)))
    assert sum("unknown" in line for line in part(text, "COLLECTIVES")) == len(entries)
    assert sum("unknown" in line for line in part(text, "BY UNIT")) == 12
    assert "BY MESSAGE SIZE" not in text
    barrier = replace(report.time.collectives[0], kind="barrier", bytes=0)
    page = part(render(replace(report, time=replace(report.time, collectives=(barrier,)))), "COLLECTIVES")
    assert "0 B" in page[1] or "0 B" in page[2]


def test_a_recording_taken_as_one_window_is_nowhere_called_a_step() -> None:
    report = trace()
    assert report.time.window is not None
    window = replace(report.time.window, policy=WindowPolicy.TRACE)
    shown = render(replace(report, time=replace(report.time, window=window), findings=(), gaps=()))
    figures = shown[shown.index("WHERE THE TIME GOES") : shown.index("BY STEP")]
    assert "per step" not in figures
    assert "in total" in figures
