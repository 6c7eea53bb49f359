"""The comment of a check: at most 60 lines, true changes with their bounds, unknown never 0."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.comments import checked
from tests.support.hostile_names import NAMES, poisoned
from tests.support.judged_checks import BASE, CHECKS, RUN, UNTIMED, varying
from tests.support.markdown_reading import tokens
from zprof.model.comparison import Outcome
from zprof.model.tenants import Tenant
from zprof.reports.pages.check_comment import MAX_LINES, render_check_comment


def table(document: str) -> dict[str, list[str]]:
    """The cells of the first table by the name of their row, as a reader sees them."""
    inline = [token for token in tokens(document) if token.type in ("inline", "tr_open", "table_close")]
    rows: dict[str, list[str]] = {}
    cells: list[str] = []
    for token in inline:
        if token.type == "inline":
            cells.append("".join(child.content for child in token.children or ()))
            continue
        if len(cells) > 1 and token.type in ("tr_open", "table_close"):
            rows[cells[0].removeprefix("= ")] = cells[1:]
        if token.type == "table_close":
            return rows
        cells = []
    return rows


def test_it_starts_with_the_verdict_and_has_the_change_of_each_part() -> None:
    document = render_check_comment(checked())
    lines = document.splitlines()
    assert lines[0].startswith("## ✗ ")
    assert lines[2].startswith("**FAILED: 2 of 8 gates failed")
    rows = table(document)
    assert rows["step"][:3] == ["386.6 ms", "391.2 ms", "+4.6 ms"]
    assert rows["exposed wait"][:3] == ["3.3 ms", "8.9 ms", "+5.6 ms"]
    assert rows["exposed transfer"][:3] == ["14.7 ms", "9.1 ms", "-5.6 ms"]
    assert rows["peak memory"][:3] == ["20.5 MiB", "21.4 MiB", "+921.6 KiB"]
    assert rows["activations"][2] == "+800.2 KiB"
    assert rows["communication buffers"][2] == "+512 B"
    assert "idle" not in rows, "0 on both sides"
    bars = {name: row[3] for name, row in rows.items()}
    assert (len(bars["exposed wait"]), set(bars["exposed wait"])) == (10, {"█"})
    assert (len(bars["exposed transfer"]), set(bars["exposed transfer"])) == (10, {"░"})
    assert bars["peak memory"] == "█" * 10, "a scale for bytes, one for times"


def test_what_one_side_does_not_know_is_unknown_and_has_no_change() -> None:
    old = checked()
    assert old.baseline is not None
    assert old.baseline.time is not None
    of_old_file = replace(old, baseline=replace(old.baseline, time=replace(old.baseline.time, ledger=None)))
    rows = table(render_check_comment(of_old_file))
    assert rows["compute"] == ["-", "373.2 ms", "-", ""]
    assert rows["exposed wait"][:3] == ["3.3 ms", "8.9 ms", "+5.6 ms"], "files always had it"
    assert table(render_check_comment(checked(run=UNTIMED)))["step"] == ["386.6 ms", "-", "-", ""]
    first = table(render_check_comment(checked(CHECKS["first"], base=None)))
    assert first["peak memory"] == ["-", "21.4 MiB", "-", ""]
    assert "gradients" not in first, "0, and nothing to compare it with"


def test_a_bound_stays_one_in_the_change() -> None:
    rows = table(render_check_comment(checked(run=replace(RUN, upper_time=True))))
    assert rows["exposed transfer"][:3] == ["14.7 ms", "≤ 9.1 ms", "≤ -5.6 ms"]
    rows = table(render_check_comment(checked(base=replace(BASE, upper_time=True))))
    assert rows["exposed transfer"][:3] == ["≤ 14.7 ms", "9.1 ms", "≥ -5.6 ms"]
    partial = checked(run=replace(RUN, timed=(0,)))
    assert "times after: no rank 1" in render_check_comment(partial)


@pytest.mark.parametrize(("check", "is_folded"), [("failed", False), ("passed", True)])
def test_the_fix_is_in_sight_if_the_check_failed(check: str, is_folded: bool) -> None:
    document = render_check_comment(checked(CHECKS[check]))
    fix = checked().causes[0].fix.splitlines()[0]
    assert fix in document
    head, _, _ = document.partition("<details>")
    assert (fix not in head) is is_folded
    assert document.count("<details>") == document.count("</details>") == 1 + is_folded


LONG = "\n".join(f"line_{number}()" for number in range(200))


@settings(max_examples=40)
@given(
    peaks=st.lists(st.integers(min_value=1, max_value=1 << 50), min_size=12, max_size=12),
    outcome=st.sampled_from(Outcome),
    notices=st.integers(min_value=0, max_value=9),
    name=st.sampled_from(NAMES),
    has_baseline=st.booleans(),
)
def test_it_never_has_more_than_sixty_lines(
    peaks: list[int], outcome: Outcome, notices: int, name: str, has_baseline: bool
) -> None:
    """With every tenant and term changed, all gates failed, long fixes, names of strangers."""
    run, base = (
        replace(RUN, tenants=dict(zip(Tenant, sizes, strict=True)), peaks=(1, sum(sizes) + 7), untagged=7)
        for sizes in (peaks[:6], peaks[6:])
    )
    base = replace(base, walls=varying(500, 5))
    made = checked(CHECKS["failed"], run, base if has_baseline else None)
    results = tuple(replace(each, outcome=outcome) for each in made.check.results) * 4
    check = replace(made.check, outcome=outcome, results=results, notices=("n",) * notices)
    causes = tuple(replace(each, fix=LONG) for each in made.causes)
    report = replace(made.report, run=replace(made.report.run, modelled=("a link",)))
    for named in (check, poisoned(check, name)):
        document = render_check_comment(replace(made, check=named, report=report, causes=causes))
        assert document.count("\n") <= MAX_LINES < 60
        assert sum(token.type == "fence" for token in tokens(document)) == 1
        assert len(document) < 65_000
