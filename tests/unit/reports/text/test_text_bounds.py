"""What is only known from one side says so on every page, and a size that nobody stated is not 0."""

from dataclasses import replace

from tests.support.reports import slower, trace
from zprof.model.report import Report
from zprof.model.time import MessageSizes, RankTime
from zprof.reports.text.report import render


def test_steps_and_units_of_ranks_without_a_split_are_bounds() -> None:
    report = trace()
    unit = report.time.units[0]
    own = replace(report.time.collectives[0], kind=unit.kind, group=unit.group)
    time = replace(report.time, per_rank=_unsplit(report.time.per_rank), collectives=(own,))
    text = render(replace(report, time=time))
    steps, units = _page(text, "BY STEP"), _page(text, "BY UNIT")
    assert all("≤ " in line and "≥ " in line for line in steps[1:3])
    assert all("≤ " in line and "≥ " in line for line in units[1:3])


def test_steps_and_units_that_were_split_are_no_bounds() -> None:
    report = trace()
    entries = tuple(replace(entry, bound=False) for entry in report.time.collectives)
    text = render(replace(report, time=replace(report.time, collectives=entries)))
    assert not [
        line for line in _page(text, "BY STEP") + _page(text, "BY UNIT") if "≤" in line or "≥" in line
    ]


def test_each_side_of_a_comparison_has_its_own_bounds() -> None:
    report = slower()
    assert report.comparison is not None
    before = replace(report.comparison, baseline_time=_unsplit(report.comparison.baseline_time))
    assert _transfer(replace(report, comparison=before)).split()[2] == "≤"
    after = replace(report, time=replace(report.time, per_rank=_unsplit(report.time.per_rank)))
    assert _transfer(after).split()[3] == "≤"
    assert "≤" not in _transfer(report)


def test_a_size_that_the_trace_does_not_say_is_unknown() -> None:
    report = trace()
    entries = tuple(replace(entry, bytes=0) for entry in report.time.collectives)
    units = tuple(replace(unit, bytes=0) for unit in report.time.units)
    bars = tuple(_bar(entry.kind, entry.group) for entry in entries)
    text = render(replace(report, time=replace(report.time, collectives=entries, units=units, messages=bars)))
    assert all("unknown" in line for line in _page(text, "COLLECTIVES")[1:3])
    assert all("unknown" in line for line in _page(text, "BY UNIT")[1:3])
    assert "BY MESSAGE SIZE" not in text


def test_a_barrier_moves_nothing() -> None:
    report = trace()
    barrier = replace(report.time.collectives[0], kind="barrier", bytes=0)
    page = _page(render(replace(report, time=replace(report.time, collectives=(barrier,)))), "COLLECTIVES")
    assert "unknown" not in page[1]
    assert "0 B" in page[1]


def test_a_trace_without_steps_is_said_to_have_none() -> None:
    report = trace()
    window = report.time.window
    assert window is not None
    whole = replace(window, source="whole trace")
    text = render(replace(report, time=replace(report.time, window=whole)))
    assert "measured: the whole trace as one step, since it marks none" in text
    assert "steps by whole trace" not in text


def _unsplit(ranks: tuple[RankTime, ...]) -> tuple[RankTime, ...]:
    return tuple(replace(rank, unsplit_ns=rank.exposed_transfer_ns + 1) for rank in ranks)


def _bar(kind: str, group: str) -> MessageSizes:
    return MessageSizes(
        kind=kind,
        group=group,
        at_least_bytes=0,
        below_bytes=1024,
        count=1.0,
        exposed_ns=1_000_000,
        busbw_bytes_per_s=None,
    )


def _page(text: str, title: str) -> list[str]:
    """The header and rows of a page."""
    lines = text.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith(title))
    return lines[begin + 1 : lines.index("", begin)]


def _transfer(report: Report) -> str:
    return next(line for line in render(report).splitlines() if line.startswith("  exposed transfer"))
