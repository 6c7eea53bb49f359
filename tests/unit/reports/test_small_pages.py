"""Pages of single commands: figures in their units, hostile names inert, nothing wider than 80 columns."""

import pytest

from zprof.model.doctor import Check, CheckStatus, Doctor
from zprof.model.formatting import display_width
from zprof.model.gaps import Gap
from zprof.model.second_opinion import Figure, FigureStatus, RankVerification, Verification
from zprof.model.side_by_side import Row
from zprof.reports.formats import page_text
from zprof.reports.page import Page
from zprof.reports.presenters.small_pages import (
    baseline_page,
    bundle_page,
    changes_page,
    demo_page,
    doctor_page,
    verification_page,
)

HOSTILE = "\x1b[2J\n::error::\u202e\ud800層" + "x" * 10_000


def row(name: str, unit: str, a: float | str | None, b: float | str | None) -> Row:
    return Row(name=name, unit=unit, a=a, b=b)


def words(page: Page) -> list[list[str]]:
    return [line.split() for line in page_text(page).splitlines()]


def test_a_baseline_has_each_figure_in_its_unit() -> None:
    rows = [
        row("peak_memory", "bytes", 0, 3 << 20),
        row("step_time", "ns", 0, 2_500_000),
        row("exposed_ratio", "ratio", 0, 0.25),
        row("count", "count", 0, 4.5),
        row("device", "text", "", "cpu"),
        row("gone", "bytes", 7, None),
    ]
    assert words(baseline_page("zero3", rows)) == [
        ["BASELINE", "zero3"],
        ["peak_memory", "3.0", "MiB"],
        ["step_time", "2.5", "ms"],
        ["exposed_ratio", "25.0", "%"],
        ["count", "4.5"],
        ["device", "cpu"],
    ]


def test_changes_say_by_how_much() -> None:
    rows = [
        row("peak_memory", "bytes", 1000, 1100),
        row("exposed_ratio", "ratio", 0.2, 0.15),
        row("peak_memory.untagged", "bytes", 0, 5),
        row("exposed_wait", "ns", None, 7),
        row("torch", "text", "2.8.0", "2.9.0"),
    ]
    assert words(changes_page(rows))[2:] == [
        ["peak_memory", "1000", "B", "1.1", "KiB", "+10.0", "%"],
        ["exposed_ratio", "20.0", "%", "15.0", "%", "-5.0", "pt"],
        ["peak_memory.untagged", "0", "B", "5", "B", "-"],
        ["exposed_wait", "-", "7", "ns", "-"],
        ["torch", "2.8.0", "->", "2.9.0"],
    ]
    assert words(changes_page([])) == [["Nothing", "changes."]]


def figure(name: str, mine: float, other: float | None, status: FigureStatus, unit: str = "ns") -> Figure:
    difference = None if other is None else mine - other
    return Figure(
        name=name, unit=unit, zprof=mine, other=other, difference=difference, tolerance=1_000.0, status=status
    )


def verification(*figures: Figure, gaps: tuple[Gap, ...] = (), reasons: tuple[str, ...] = ()) -> Verification:
    rank = RankVerification(rank=3, device_rows=61, figures=figures, reasons=reasons)
    return Verification(
        zprof_version="1.2", source="HTA", settings="A=1", window="whole trace", ranks=(rank,), gaps=gaps
    )


EQUAL = figure("compute", 12_345_678, 12_345_679, FigureStatus.EQUAL)
DIFFERS = figure("idle", 5_000, 9_000, FigureStatus.DIFFERS)
UNKNOWN = figure("memory", 7, None, FigureStatus.UNKNOWN)
OVERLAP = figure("overlap", 14.9461, 14.95, FigureStatus.EQUAL, unit="percent")


def test_figures_of_two_programs_stand_side_by_side() -> None:
    text = page_text(verification_page(verification(OVERLAP, EQUAL, DIFFERS, UNKNOWN)))
    assert text.startswith("✗ ")
    cells = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ")}
    assert cells["compute"] == ["12345.678", "12345.679", "-0.001", "1.000", "equal"]
    assert cells["idle"] == ["5.000", "9.000", "-4.000", "1.000", "DIFFERS"]
    assert cells["memory"] == ["0.007", "-", "-", "1.000", "unknown"]
    assert cells["overlap"][1:4] == ["14.95", "14.95", "0.00"]
    assert page_text(verification_page(verification(EQUAL))).startswith("✓ ")
    assert page_text(verification_page(verification(UNKNOWN))).startswith("? ")


@pytest.mark.parametrize("status", CheckStatus)
def test_doctor_names_the_check_and_the_remedy(status: CheckStatus) -> None:
    check = Check(
        name="NVML", status=status, found="what was found", without="what is lost", remedy="what to do"
    )
    text = page_text(doctor_page(Doctor(zprof_version="1", checks=(check,))))
    assert all(part in text for part in ("NVML", "what was found", "is lost", "→ what to do"))
    assert text.startswith("✗" if status is CheckStatus.BROKEN else "✓")


def test_hostile_names_are_inert_and_short() -> None:
    check = Check(name="x", status=CheckStatus.OK, found=HOSTILE, without=HOSTILE, remedy=HOSTILE)
    gap = Gap(what=HOSTILE, reason=HOSTILE, remedy=HOSTILE, rank=3)
    rows = [row(HOSTILE, "bytes", 1, 2), row(HOSTILE, "text", HOSTILE, HOSTILE[:50])]
    for page in (
        baseline_page(HOSTILE, rows),
        changes_page(rows),
        verification_page(verification(DIFFERS, gaps=(gap,), reasons=(HOSTILE,))),
        doctor_page(Doctor(zprof_version=HOSTILE, checks=(check,))),
        bundle_page([(HOSTILE, HOSTILE, 1)], 2, [HOSTILE]),
        demo_page([(HOSTILE, "1", "2", "3")]),
    ):
        lines = page_text(page).splitlines()
        assert all(line.isprintable() for line in lines)
        assert not [line for line in lines if line.lstrip().startswith("::")]
        assert max(map(display_width, lines)) <= 80
