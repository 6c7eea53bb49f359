"""The text report: golden files, 80 columns, nothing hostile, unknowns said.

``ZPROF_UPDATE_GOLDEN=1 pytest tests/unit/reports`` writes the golden files anew: read the difference.
"""

import os
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.full_times import full_time
from tests.support.memories import HOSTILE, memory_of
from tests.support.reports import SITUATIONS, memory_only, slower, snapshot, straggler, trace
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.model.printable import display_width
from zprof.model.report import Report
from zprof.model.tenants import Tenant
from zprof.model.time import WindowPolicy
from zprof.reports.text.report import render

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.mark.parametrize("name", SITUATIONS)
def test_golden(name: str) -> None:
    text = render(SITUATIONS[name]())
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ZPROF_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def hostile() -> Report:
    """Every name that a run can bring, hostile, long and wide."""
    name = HOSTILE + "層" * 60 + "x" * 200
    report = straggler(module=name, name=name)
    facts = replace(report.run, modelled=(name,), engine=name, backend=name, device=name)
    collectives = tuple(
        replace(entry, kind=name, group=name + str(index), dtype=name)
        for index, entry in enumerate(report.time.collectives)
    )
    alignment = replace(report.time.alignment, method=name) if report.time.alignment else None
    ranks = tuple(replace(rank, peak_phase=name + str(rank.rank)) for rank in report.memory.per_rank)
    return replace(
        report,
        run=facts,
        verdict=replace(report.verdict, sentence=name),
        time=replace(report.time, collectives=collectives, alignment=alignment),
        memory=replace(report.memory, per_rank=ranks),
        findings=(_hostile_finding(name),),
        gaps=(Gap(what=name, reason=name, remedy=name, rank=1),),
    )


def hostile_memory() -> Report:
    """Every name of the memory pages hostile."""
    name = HOSTILE + "層" * 60 + "x" * 200
    report = memory_only(module=name)
    memory = report.memory
    spread = replace(memory.spread, tenant=name) if memory.spread else None
    return replace(
        report,
        memory=replace(
            memory,
            spread=spread,
            laws=tuple(replace(law, cause=name) for law in memory.laws),
            devices=tuple(replace(device, device=name, moment=name) for device in memory.devices),
            counters=tuple(replace(entry, device=name) for entry in memory.counters),
            phases=tuple(replace(phase, phase=name) for phase in memory.phases),
            per_rank=tuple(
                replace(rank, parts=tuple(replace(part, sub=name, tenant=name) for part in rank.parts))
                for rank in memory.per_rank
            ),
        ),
    )


def hostile_trace() -> Report:
    """Every name of the time pages hostile."""
    name = HOSTILE + "層" * 60 + "x" * 200
    report = trace()
    time = full_time(report.time, name)
    return replace(report, time=replace(time, units=tuple(replace(unit, kind=name) for unit in time.units)))


def _hostile_finding(name: str) -> Finding:
    return Finding(
        id=name,
        cause=Cause.NO_PREFETCH,
        severity=Severity.HIGH,
        sentence=name,
        evidence=(Evidence(what=name, value=1.0, unit=name, rank=0),),
        saving_ns=(1, 2),
        confidence=Confidence.HIGH,
        fix=f"{name}\n    {name}",
        disprove=name,
        doc=name,
    )


HOSTILE_REPORTS = (hostile, hostile_memory, hostile_trace)


@pytest.mark.parametrize("make", [*SITUATIONS.values(), *HOSTILE_REPORTS], ids=lambda make: make.__name__)
def test_fits_80_columns_and_steers_no_terminal(make: Callable[[], Report]) -> None:
    text = render(make())
    for line in text.removesuffix("\n").split("\n"):
        assert display_width(line) <= 80, line
        bad = [c for c in line if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
        assert not bad, line


def test_many_ranks_stay_readable() -> None:
    ranks = memory_of(3, ranks=64).per_rank
    report = slower()
    time = replace(report.time, per_rank=report.time.per_rank * 32)
    lines = render(replace(report, comparison=None, memory=memory_of(3, ranks=64), time=time)).splitlines()
    assert any("4 of 64 ranks, the largest peaks" in line for line in lines)
    assert any("8 of 64 ranks" in line for line in lines)
    assert len(lines) < 100
    assert len(ranks) == 64


def test_first_line_is_the_verdict() -> None:
    assert render(slower()).startswith("✗ SLOWER 431.4 ms vs 243.9 ms a step, +77 % [")


def test_what_is_modelled_is_said_before_any_number_of_the_ledger() -> None:
    text = render(slower())
    assert 0 < text.index("MODELLED") < text.index("MEMORY AT") < text.index("WHERE THE")


def test_gaps_come_last_with_their_remedy() -> None:
    report = slower()
    text = render(report)
    assert text.index("NOT MEASURED (3)") > text.index("FINDINGS")
    assert "→ " in text[text.index("NOT MEASURED") :]


def test_no_bar_and_no_number_for_what_is_unknown() -> None:
    text = render(SITUATIONS["nothing_timed"]())
    assert "WHERE A STEP GOES" not in text
    assert "0.0" not in text


def test_an_upper_bound_is_said_to_be_one() -> None:
    report = slower()
    bound = tuple(replace(rank, upper_bound=True) for rank in report.time.per_rank)
    shown = render(replace(report, time=replace(report.time, per_rank=bound)))
    assert "at most" in shown
    assert "at least" in shown
    assert "at most" not in render(report)


def test_a_guess_is_nothing_to_try_first() -> None:
    report = slower()
    guess = replace(report.findings[0], confidence=Confidence.LOW)
    assert "  try: " in render(report)
    assert "  try: " not in render(replace(report, findings=(guess,)))


def test_collectives_of_several_places_stand_under_theirs_uncut() -> None:
    report = slower()
    first, *rest = report.time.collectives
    half = replace(first, dtype="bfloat16")
    shown = render(replace(report, time=replace(report.time, collectives=(half, *rest))))
    assert f"\n  group {first.group}, bfloat16\n  {first.kind} " in shown
    assert f"\n  group {rest[0].group}, {rest[0].dtype}\n  {rest[0].kind} " in shown


def test_a_backend_that_nobody_named_is_left_out() -> None:
    report = slower()
    alone = replace(report, run=replace(report.run, backend="none", engine="unknown", device="cuda"))
    (line,) = [line for line in render(alone).splitlines() if line.startswith("  run ")]
    assert "2 ranks, cuda, steps" in line


@pytest.mark.parametrize(
    ("upper", "lower", "mark"), [(True, False, "≤ "), (False, True, "≥ "), (True, True, "≈ ")]
)
def test_a_peak_that_is_a_bound_is_marked(mark: str, *, upper: bool, lower: bool) -> None:
    report = slower()
    ranks = tuple(replace(r, upper_bound=upper, lower_bound=lower) for r in report.memory.per_rank)
    shown = render(replace(report, memory=replace(report.memory, per_rank=ranks)))
    (line,) = [line for line in shown.splitlines() if line.startswith("  = allocated peak")]
    assert line.count(mark) == len(ranks)


def test_a_tenant_that_rules_did_not_find_is_unknown_and_not_zero() -> None:
    report = snapshot()
    rank = report.memory.per_rank[1]
    without = replace(rank, tenants={**rank.tenants, Tenant.GRADIENTS: 0})
    text = render(replace(report, memory=replace(report.memory, per_rank=(without,))))
    assert next(line for line in text.splitlines() if "gradients" in line).split() == ["gradients", "-"]
    seen = replace(without, basis_bytes=None, parts=())
    text = render(replace(report, memory=replace(report.memory, per_rank=(seen,))))
    assert next(line for line in text.splitlines() if "gradients" in line).split() == ["gradients", "0", "B"]


def test_a_recording_taken_as_one_stretch_is_nowhere_called_a_step() -> None:
    report = trace()
    assert report.time.window is not None
    window = replace(report.time.window, policy=WindowPolicy.TRACE)
    shown = render(replace(report, time=replace(report.time, window=window), findings=(), gaps=()))
    figures = shown[shown.index("WHERE THE TIME GOES") : shown.index("FINDINGS")]
    assert "a step" not in figures
    assert "in all" in figures
