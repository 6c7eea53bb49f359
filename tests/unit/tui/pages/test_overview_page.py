"""The first screen: a ledger whose bars sum, findings by saving, and what is left over."""

from dataclasses import replace

import pytest

from tests.support.diagnosis_reports import DIAGNOSES, alone, larger_batch
from tests.support.reports import SITUATIONS
from zprof.model.gaps import Gap
from zprof.model.report import Report, RunFacts, Verdict, VerdictStatus
from zprof.tui.figures import Figure
from zprof.tui.metric_help.registry import find_help
from zprof.tui.presenters.overview import (
    build_evidence_table,
    build_findings_table,
    build_ledger_table,
    build_rest_table,
    describe_finding,
    format_verdict,
    format_warning,
    format_warning_cell,
    layout_bars,
    list_untested,
    select_terms,
)
from zprof.tui.screens.overview import shorten_warning
from zprof.tui.session import LoadedRun
from zprof.tui.tables import BarCell, Table

REPORTS = {**DIAGNOSES, **SITUATIONS}
STEP = "wall_ns"


def shown(report: Report) -> LoadedRun:
    """A report without the run that it is of."""
    return LoadedRun(run=None, report=report, analysis=None)  # type: ignore[arg-type]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in line.cells] for line in table.lines]


def sizes(cell: object) -> float:
    assert isinstance(cell, BarCell)
    return sum(end - begin for _, begin, end in cell.segments)


@pytest.mark.parametrize("status", VerdictStatus)
def test_the_verdict_begins_with_a_sign(status: VerdictStatus) -> None:
    verdict = Verdict(status=status, sentence=f"{status.value.upper()} 1.0 ms a step")
    words = format_verdict(replace(alone(), verdict=verdict))
    assert words[0].text[:2] in ("✓ ", "✗ ", "! ", "? ")
    assert words[0].text[2:] == status.value.upper()
    assert words[1].text == "1.0 ms a step", "the status is said once"


def test_the_terms_of_the_fixture_by_weight_and_the_step_they_sum_to(loaded: LoadedRun) -> None:
    table = build_ledger_table(loaded)
    names = [line.cells[0].text for line in table.lines]
    assert names == ["exposed transfer", "idle", "exposed wait", "compute", "= step"]
    for column in (1, 3, 4):
        *terms, step = [line.cells[column] for line in table.lines]
        values = [cell.value for cell in terms if isinstance(cell, Figure)]
        assert isinstance(step, Figure)
        assert sum(values) == pytest.approx(step.value, abs=60_000)  # type: ignore[arg-type]
    assert "from ddp to zero3" in table.title


def test_bars_of_the_change_begin_where_the_one_above_ends(loaded: LoadedRun) -> None:
    report = loaded.report
    terms = select_terms(report)
    segments = layout_bars(report, terms)
    assert report.comparison is not None
    at = 0.0
    whole = sum(report.comparison.ledger_delta.values())
    for term in terms:
        ((kind, begin, end),) = segments[term]
        assert kind == term
        assert begin == pytest.approx(at)
        assert end - begin == pytest.approx(report.comparison.ledger_delta[term] / whole, abs=1e-6)
        at = end
    assert segments[STEP] == ((STEP, 0.0, pytest.approx(at)),)


def test_a_term_that_shrank_goes_back() -> None:
    report = REPORTS["against_baseline"]()
    assert report.comparison is not None
    delta = {"compute_ns": 30, "exposed_transfer_ns": 100, "idle_ns": -50}
    delta |= dict.fromkeys(("exposed_wait_ns", "exposed_memcpy_ns", "unexplained_ns"), 0)
    turned = replace(report, comparison=replace(report.comparison, ledger_delta=delta))
    segments = layout_bars(turned, ["exposed_transfer_ns", "compute_ns", "idle_ns"])
    assert segments["exposed_transfer_ns"][0][1:] == (0, pytest.approx(100 / 130))
    assert segments["compute_ns"][0][1:] == (pytest.approx(100 / 130), 1)
    assert segments["idle_ns"][0][1:] == (pytest.approx(80 / 130), 1)
    assert segments[STEP][0][1:] == (0, pytest.approx(80 / 130))
    delta |= {"exposed_transfer_ns": 0, "compute_ns": 20}
    faster = replace(report, comparison=replace(report.comparison, ledger_delta=delta))
    segments = layout_bars(faster, ["compute_ns", "idle_ns"])
    assert segments["compute_ns"][0][1:] == (pytest.approx(30 / 50), 1)
    assert segments["idle_ns"][0][1:] == (0, 1)
    assert segments[STEP][0][1:] == (0, pytest.approx(30 / 50)), "from the old end back to the new one"


def test_alone_the_bars_are_the_step(alone: LoadedRun) -> None:
    table = build_ledger_table(alone)
    *terms, step = [line.cells[-1] for line in table.lines]
    assert sum(map(sizes, terms)) == pytest.approx(1, abs=1e-3)
    assert isinstance(step, BarCell)
    assert sizes(step) == pytest.approx(1, abs=1e-3)
    assert [kind for kind, *_ in step.segments] == [line.key for line in table.lines[:-1]]
    assert table.title == "where the time goes"
    assert len(table.columns) == 4


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_can_be_shown(name: str) -> None:
    at = shown(REPORTS[name]())
    tables = [build_ledger_table(at), build_findings_table(at), build_rest_table(at)]
    for table in tables:
        assert all(len(line.cells) == len(table.columns) for line in table.lines)
        for figure in table.figures():
            assert figure.value is not None, figure
            assert {
                leaf for part in figure.in_report() for leaf in part.leaves if not find_help(leaf)
            } == set()
    assert bool(tables[0].lines) == bool(at.report.time.per_rank)
    format_warning_cell(at.report)


def test_findings_say_their_saving_in_one_cell(loaded: LoadedRun) -> None:
    table = build_findings_table(loaded)
    first = table.lines[0].cells
    assert [cell.text for cell in first[:3]] == ["ZP401", "36.4..125.8 ms", "high"]
    assert isinstance(first[1], Figure)
    assert [part.leaves for part in first[1].in_report()] == [
        ("findings[0].saving_ns[0]",),
        ("findings[0].saving_ns[1]",),
    ]


def test_a_finding_about_memory_says_what_it_frees() -> None:
    line = build_findings_table(shown(REPORTS["untimed"]())).lines[0]
    assert line.cells[1].text == "1.0..2.0 GiB"


def test_no_finding_is_said() -> None:
    table = build_findings_table(shown(larger_batch()))
    assert not table.lines
    assert "no cause that was tested was found" in table.title
    assert table.note == "all that zprof tests for was tested"
    assert list_untested(larger_batch()) == ""
    report = larger_batch()
    untimed = replace(report, time=replace(report.time, per_rank=()))
    assert build_findings_table(shown(untimed)).title == "no step was timed: what costs time was not tested"


def test_without_findings_it_says_what_was_not_tested_and_why() -> None:
    gap = Gap(what="rule data_loader not tested", reason="no loader was seen", remedy="record more")
    report = replace(larger_batch(), gaps=(gap,))
    assert build_findings_table(shown(report)).note == "what was not tested, and why, is said below"
    assert list_untested(report) == "not tested:\nrule data_loader: no loader was seen"


def test_what_is_told_of_the_focused_finding() -> None:
    report = REPORTS["against_baseline"]()
    assert describe_finding(report, 0) == "fix: FSDP2: fix_of_no_prefetch()", "the verdict says its sentence"
    assert describe_finding(report, 1).startswith(
        "ZP409 gradients travel in 4 bytes, 2 are enough. fix: FSDP2: fix_of"
    )
    assert describe_finding(report, 3) == describe_finding(report, -1) == ""
    found = replace(report.findings[0], fix="FSDP2:\n    a()\n    b()\nDDP:\n    c()")
    assert describe_finding(replace(report, findings=(found,)), 0) == "fix: FSDP2: a() …"


def test_what_is_left_over(loaded: LoadedRun) -> None:
    rows = {row[0]: row for row in texts(build_rest_table(loaded))}
    assert rows["peak memory"][1:4] == ["9.9 MiB", "was", "13.7 MiB"]
    assert rows["not tested"][4] == "reserved and non-PyTorch memory"
    rows = {row[0]: row for row in texts(build_rest_table(shown(REPORTS["against_baseline"]())))}
    assert rows["unclaimed"][1:3] == ["33.0 ms", "of"]
    assert rows["unclaimed"][4] == "of a step on rank 1, by no finding; mostly exposed transfer"
    assert "headroom" not in rows


def test_headroom_is_that_of_the_fullest_device() -> None:
    report = REPORTS["memory_only"]()
    devices = tuple(
        replace(device, rank=rank, device_used_bytes=used, device_total_bytes=total)
        for rank, (device, used, total) in enumerate(
            zip(report.memory.devices * 2, (None, 60 << 30, 70 << 30, 10 << 30), (80 << 30,) * 4, strict=True)
        )
    )
    full = replace(report, memory=replace(report.memory, devices=devices))
    line = next(line for line in build_rest_table(shown(full)).lines if line.key == "headroom")
    assert [cell.text for cell in line.cells[1:4]] == ["10.0 GiB", "of", "80.0 GiB"]
    assert line.cells[4].text == "of the device of rank 2, the fullest"
    unknown = replace(report, memory=replace(report.memory, devices=devices[:1]))
    assert "headroom" not in {line.key for line in build_rest_table(shown(unknown)).lines}


def facts(**what: tuple[str, ...]) -> RunFacts:
    return replace(alone().run, **what)  # type: ignore[arg-type]


def test_that_a_link_is_modelled_comes_before_what_has_no_room(loaded: LoadedRun) -> None:
    said = format_warning(loaded.report)
    assert said.startswith("not the same job: modelled · MODELLED, not measured: link of 50.0 MB/s")
    assert said.index("MODELLED") < 60, "what comes before it is cut"
    assert format_warning_cell(loaded.report).text.startswith("! ")
    many = replace(
        loaded.report,
        comparison=replace(
            loaded.report.comparison,  # type: ignore[type-var]
            differences=tuple(
                replace(loaded.report.comparison.differences[0], what=f"difference {number}")  # type: ignore[union-attr]
                for number in range(20)
            ),
        ),
    )
    assert format_warning(many).index("MODELLED") < 60


def test_nothing_to_warn_of() -> None:
    report = replace(alone(), run=facts(modelled=()))
    assert format_warning(report) == ""
    assert format_warning_cell(report).text == ""
    assert "MODELLED" in format_warning(replace(report, run=facts(modelled=("compute of 12 ms",))))


def test_the_evidence_of_a_finding_is_its_facts_in_their_units(loaded: LoadedRun) -> None:
    table = build_evidence_table(loaded, 0)
    facts = loaded.report.findings[0].evidence
    assert table.title == "evidence of ZP401"
    assert [row[0] for row in texts(table)] == [fact.what for fact in facts]
    assert [number.value for number in table.figures()] == [fact.value for fact in facts]
    assert [number.unit for number in table.figures()] == [fact.unit for fact in facts]
    for place in (-1, len(loaded.report.findings)):
        assert not build_evidence_table(loaded, place).lines


@pytest.mark.parametrize("width", range(60, 140, 9))
def test_a_warning_is_cut_between_its_facts(width: int) -> None:
    said = (
        "! MODELLED, not measured: link of 50.0 MB/s, latency 50.0 µs; compute of 12.0 ms forward and 24.0 ms"
    )
    cut = shorten_warning(said, width)
    assert len(cut) <= width
    if len(said) <= width:
        assert cut == said
    else:
        assert cut.endswith(" … (?)")
        assert said[len(cut.removesuffix(" … (?)"))] in ",; "
