"""Two programs side by side as text: 80 columns, signs, units, and names that stay names."""

from zprof.model.gaps import Gap
from zprof.model.verification import Figure, FigureStatus, RankVerification, Verification
from zprof.reports.text.verification import render


def figure(name: str, mine, other, status: FigureStatus, unit: str = "ns") -> Figure:
    difference = None if mine is None or other is None else mine - other
    return Figure(
        name=name, unit=unit, zprof=mine, other=other, difference=difference, tolerance=1_000.0, status=status
    )


def verification(*figures: Figure, gaps: tuple[Gap, ...] = (), reasons: tuple[str, ...] = ()) -> Verification:
    rank = RankVerification(rank=3, device_rows=61, figures=figures, reasons=reasons)
    return Verification(
        zprof_version="1.2",
        source="HTA 0.5.0",
        settings="HTA_DISABLE_NS_ROUNDING=1, include_last_profiler_step=True",
        window="whole trace",
        ranks=(rank,),
        gaps=gaps,
    )


EQUAL = figure("compute", 12_345_678, 12_345_679, FigureStatus.EQUAL)
DIFFERS = figure("idle", 5_000, 9_000, FigureStatus.DIFFERS)
UNKNOWN = figure("memory", 7, None, FigureStatus.UNKNOWN)
OVERLAP = figure("overlap", 14.9461, 14.95, FigureStatus.EQUAL, unit="percent")


def test_figures_stand_side_by_side():
    lines = render(verification(OVERLAP, EQUAL, DIFFERS, UNKNOWN)).splitlines()
    assert lines[0].startswith("They differ.")
    assert any(line.startswith("RANK 3") and "61 rows" in line for line in lines)
    cells = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  ")}
    assert cells["compute"] == ["12345.678", "12345.679", "-0.001", "1.000", "equal"]
    assert cells["idle"] == ["5.000", "9.000", "-4.000", "1.000", "DIFFERS"]
    assert cells["memory"] == ["0.007", "-", "-", "1.000", "unknown"]
    assert cells["overlap"][1:4] == ["14.95", "14.95", "0.00"]


def test_the_first_line_is_the_answer():
    agreed = render(verification(EQUAL, UNKNOWN))
    assert agreed.startswith("Both agree")
    assert max(map(len, agreed.splitlines())) <= 80
    assert render(verification(UNKNOWN)).startswith("Nothing could be compared")


def test_hostile_and_long_texts_keep_to_80_columns():
    evil = "k\x1b[31m\n" + "x" * 300
    gap = Gap(what=evil, reason=evil, remedy=evil, rank=3)
    text = render(verification(DIFFERS, gaps=(gap,), reasons=(evil, "two words " * 20)))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "NOT COMPARED" in text
