"""A baseline on a page: figures in their units, hostile names inert, nothing wider than 80 columns."""

from zprof.model.printable import display_width
from zprof.model.side_by_side import Row
from zprof.reports.text.baseline import render_baseline, render_changes

HOSTILE = "\x1b[2J\n::error::\u202e\ud800层" + "x" * 10_000


def row(name: str, unit: str, a: float | str | None, b: float | str | None) -> Row:
    return Row(name=name, unit=unit, a=a, b=b)


def test_the_second_side_is_shown_in_its_units() -> None:
    rows = [
        row("peak_memory", "bytes", 0, 3 << 20),
        row("step_time", "ns", 0, 2_500_000),
        row("exposed_ratio", "ratio", 0, 0.25),
        row("count", "count", 0, 4.5),
        row("device", "text", "", "cpu"),
        row("gone", "bytes", 7, None),
    ]
    lines = [line.split() for line in render_baseline("zero3", rows).splitlines()]
    assert lines == [
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
    lines = [line.split() for line in render_changes(rows).splitlines()[2:]]
    assert lines == [
        ["peak_memory", "1000", "B", "1.1", "KiB", "+10.0", "%"],
        ["exposed_ratio", "20.0", "%", "15.0", "%", "-5.0", "pt"],
        ["peak_memory.untagged", "0", "B", "5", "B", "-"],
        ["exposed_wait", "-", "7", "ns", "-"],
        ["torch", "2.8.0", "->", "2.9.0"],
    ]
    assert render_changes([]) == "nothing changes\n"


def test_hostile_names_are_inert_and_short() -> None:
    rows = [row(HOSTILE, "bytes", 1, 2), row(HOSTILE, "text", HOSTILE, HOSTILE[:50])]
    for page in (render_baseline(HOSTILE, rows), render_changes(rows)):
        lines = page.splitlines()
        assert all(line.isprintable() for line in lines)
        assert not [line for line in lines if line.lstrip().startswith("::")]
        assert max(map(display_width, lines)) <= 80
