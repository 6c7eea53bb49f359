"""Two runs side by side: 80 columns, unknown said as such, equal settings left out."""

import unicodedata
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.memories import HOSTILE
from tests.support.report_pages import both_runs
from zprof.model.formatting import display_width
from zprof.model.side_by_side import Row, Section, Setting, SideBySide
from zprof.reports.formats import page_text
from zprof.reports.presenters.side_by_side import change, label, side_by_side_page


def render(page: SideBySide, *, everything: bool = False) -> str:
    return page_text(side_by_side_page(page, everything=everything))


def hostile() -> SideBySide:
    name = HOSTILE + "層" * 60 + "x" * 200
    rows = (Row(name=name, unit="ns", a=1, b=None), Row(name=name, unit="text", a=name, b=None))
    setting = Setting(where=name, name=name, a=name, b=None)
    page = both_runs()
    return replace(
        page,
        a=replace(page.a, name=name, backend=name, modelled=(name,)),
        verdict=replace(page.verdict, sentence=name),
        sections=(Section(title=name, note="a step", rows=rows),),
        settings=(setting,),
    )


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("make", [both_runs, hostile], ids=lambda make: make.__name__)
def test_fits_80_columns_and_steers_no_terminal(make: Callable[[], SideBySide], everything: bool) -> None:
    for line in render(make(), everything=everything).removesuffix("\n").split("\n"):
        assert display_width(line) <= 80, line
        assert not [c for c in line if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}], line


def test_equal_settings_and_empty_rows_need_all() -> None:
    short, whole = render(both_runs()), render(both_runs(), everything=True)
    assert "world size" not in short
    assert "run: world size" in whole
    assert "exposed copies" not in short
    assert "exposed copies" in whole
    assert "Left out" not in whole


def test_what_is_modelled_is_never_left_out() -> None:
    assert "MODELLED  link 180 MB/s" in render(both_runs())


def test_unknown_is_a_word() -> None:
    text = render(both_runs())
    volume = text[text.index("VOLUME") :].splitlines()[2]
    assert volume.split()[:2] == ["seen", "unknown"]


def test_ranks_of_a_large_job_are_left_to_all() -> None:
    page = both_runs()
    rows = (Row(name="wall_ns", unit="ns", a=1, b=2),)
    many = tuple(
        Section(title=f"rank {rank}{late}", note="a step", rows=rows)
        for rank in range(64)
        for late in ("", " as the late one")
    )
    text = render(replace(page, sections=many))
    assert text.count("\nRANK ") == 8
    assert render(replace(page, sections=many), everything=True).count("\nRANK ") == 128


@pytest.mark.parametrize(
    ("unit", "a", "b", "shown"),
    [
        ("ns", 100, 150, "+50.0 %"),
        ("ns", 100, 199, "+99.0 %"),
        ("ns", 100, 200, "x 2.0"),
        ("ns", 100, 0, "-100.0 %"),
        ("ns", 0, 5, "new"),
        ("ns", 0, 0, ""),
        ("ns", None, 5, ""),
        ("ns", 5, None, ""),
        ("ns", 10_000, 10_004, ""),
        ("ratio", 0.5, 0.25, "-25.0 pt"),
        ("text", "a", "b", ""),
    ],
)
def test_change(unit: str, a: float | str | None, b: float | str | None, shown: str) -> None:
    assert change(Row(name="x", unit=unit, a=a, b=b)) == shown  # type: ignore[arg-type]


def test_names_of_kernels_stay() -> None:
    assert label(Row(name="my_kernel", unit="ns", a=1, b=1)) == "my_kernel"
    assert label(Row(name="exposed_wait_ns", unit="ns", a=1, b=1)) == "exposed wait"
