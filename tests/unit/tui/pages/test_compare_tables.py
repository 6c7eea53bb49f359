"""Both runs row by row: what is no leaf of the report is held against the JSON of ``zprof compare``."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from zprof.model.gaps import Gap
from zprof.model.json_format import to_json
from zprof.model.side_by_side import Row, Section, Setting
from zprof.rules.diagnose import diagnose_side_by_side
from zprof.run.reader import load as open_run
from zprof.tui.figures import Aggregation, Figure
from zprof.tui.metric_help.registry import find_help
from zprof.tui.number_popup import explain_number
from zprof.tui.presenters.compare import (
    CompareOptions,
    build_compare_table,
    build_settings_table,
    describe_row,
    explain_no_tokens,
    format_header,
    format_short_verdict,
    shorten_names,
)
from zprof.tui.presenters.compare_rows import CompareFigure, make_side_figure
from zprof.tui.session import LoadedRun, RunRequest, swap_baseline
from zprof.tui.tables import Line, Table

ALL, DIFFERING, TOKENS = (
    CompareOptions(),
    CompareOptions(only_differences=True),
    CompareOptions(per_token=True),
)
METRIC, A, B, CHANGE, INTERVAL, VERDICT = range(6)


@pytest.fixture(scope="module")
def compared(loaded: LoadedRun) -> Any:
    """What ``zprof compare -f json`` writes, of runs that are opened and measured anew."""
    assert loaded.before_run is not None
    return json.loads(
        to_json(diagnose_side_by_side(open_run(loaded.before_run.path), open_run(loaded.run.path)))
    )


def place(tree: Any, key: str) -> Any:
    found = re.fullmatch(r"(\w+)\[(\d+)\](?:\.(\w+)\[(\d+)\])?", key)
    assert found, key
    node = tree[found[1]][int(found[2])]
    return node[found[3]][int(found[4])] if found[3] else node


def line(table: Table, name: str) -> Line:
    return next(one for one in table.lines if one.cells[METRIC].text == name)


def test_every_row_is_that_of_zprof_compare(loaded: LoadedRun, compared: Any) -> None:
    lines = build_compare_table(loaded, ALL).lines
    assert len(lines) > 80
    for one in lines:
        row = place(compared, one.key)
        for cell, value in ((one.cells[A], row["a"]), (one.cells[B], row["b"])):
            if isinstance(cell, Figure):
                off = 1 if row["unit"] in ("ns", "bytes") else 1e-9
                assert cell.value == (None if value is None else pytest.approx(value, abs=off)), one.key
                assert cell.unit.value == row["unit"]
            else:
                assert row["unit"] == "text"


def test_changes_are_those_of_its_numbers(loaded: LoadedRun, compared: Any) -> None:
    for one in build_compare_table(loaded, ALL).lines:
        row, cell = place(compared, one.key), one.cells[CHANGE]
        known = row["unit"] != "text" and None not in (row["a"], row["b"])
        assert isinstance(cell, CompareFigure) == known
        if isinstance(cell, CompareFigure) and row["unit"] == "ratio":
            assert cell.value == pytest.approx(row["b"] - row["a"])
        elif isinstance(cell, CompareFigure):
            expected = row["b"] / row["a"] - 1 if row["a"] else None
            assert cell.value == (None if expected is None else pytest.approx(expected))
            assert cell.text == said(row["a"], row["b"])


def said(a: float, b: float) -> str:
    """A change in words, worked out anew."""
    if not a:
        return "new" if b else ""
    if abs(b / a - 1) < 0.0005:
        return ""
    return f"x {b / a:.1f}" if b >= 2 * a else f"{(b / a - 1) * 100:+.1f} %"


def test_numbers_of_compare_are_no_leaves_and_all_others_have_some(loaded: LoadedRun) -> None:
    leaves = derived = 0
    for figure in build_compare_table(loaded, ALL).figures():
        if isinstance(figure, CompareFigure):
            derived += 1
            assert figure.leaves == ()
            assert figure.in_report() == ()
        else:
            leaves += 1
            assert figure.leaves
            assert figure.in_report()
    assert leaves > 50
    assert derived > 50


def test_what_is_a_leaf_of_the_report_is_shown_as_one(loaded: LoadedRun) -> None:
    table = build_compare_table(loaded, ALL)
    for name, before, after in (
        ("step time", "comparison.baseline_time[*].wall_ns", "time.per_rank[*].wall_ns"),
        ("rank 1 compute", "comparison.baseline_time[1].compute_ns", "time.per_rank[1].compute_ns"),
        ("peak memory", "comparison.baseline_memory[*].peak_bytes", "memory.per_rank[*].peak_bytes"),
        (
            "activations",
            "comparison.baseline_memory[*].tenants.activations",
            "memory.per_rank[*].tenants.activations",
        ),
    ):
        cells = line(table, name).cells
        figures = [cell for cell in cells[A : B + 1] if isinstance(cell, Figure)]
        assert [figure.leaves for figure in figures] == [(before,), (after,)]
        largest = name in ("peak memory", "activations")
        assert all((figure.how is Aggregation.LARGEST) == largest for figure in figures)


def test_what_a_rank_does_not_know_is_unknown(loaded: LoadedRun) -> None:
    """Though its leaves would make a number of what the others know."""
    section = Section(title="step", note="", rows=())
    row = Row(name="overlap_ratio", unit="ratio", a=None, b=0.5)
    assert [make_side_figure(loaded, section, row, after=after).text for after in (False, True)] == [
        "unknown",
        "50.0 %",
    ]
    assert isinstance(make_side_figure(loaded, section, row, after=True), CompareFigure), (
        "no leaf makes this number"
    )


def test_every_figure_has_a_meaning(loaded: LoadedRun) -> None:
    for shown in (ALL, TOKENS):
        named = [leaf for figure in build_compare_table(loaded, shown).figures() for leaf in figure.leaves]
        assert not {leaf for leaf in named if find_help(leaf) is None}


def test_verdicts_of_the_fixture(loaded: LoadedRun) -> None:
    table = build_compare_table(loaded, ALL)
    verdicts = {one.cells[METRIC].text: one.cells[VERDICT].text for one in table.lines}
    assert verdicts["step time"] == "✗ worse"
    assert verdicts["exposed transfer"] == "✗ worse"
    assert verdicts["compute"] == "~ noise"
    assert verdicts["peak memory"] == "✓ better"
    assert verdicts["communication buffers"] == "✗ worse"
    assert verdicts["tokens a step"] == "= same"
    assert verdicts["volume expected"] == "* exact"
    assert verdicts["hidden share"] == "✗ worse"
    assert verdicts["wait of the first"] == "not judged"
    assert line(table, "step time").cells[INTERVAL].text == "+53..+69 %"
    assert line(table, "peak memory").cells[INTERVAL].text == "exact"
    assert (
        line(table, "compute").cells[INTERVAL].text == line(table, "idle").cells[INTERVAL].text == "± 16.1 ms"
    )
    assert line(table, "volume ratio").cells[INTERVAL].text == ""


def test_the_hidden_share_is_judged_by_the_shares_of_the_steps(loaded: LoadedRun) -> None:
    """Held against the steps of both, drawn anew by other means."""
    assert loaded.before is not None
    shares = []
    for steps in (loaded.before.steps, loaded.analysis.steps):
        sums = steps.groupby("step")[["overlapped_ns", "collective_ns"]].sum()
        shares.append((sums["overlapped_ns"] / sums["collective_ns"]).to_numpy())
    spread = sum(part.var(ddof=1) / len(part) for part in shares) ** 0.5
    change = shares[1].mean() - shares[0].mean()
    shown = line(build_compare_table(loaded, ALL), "hidden share").cells[INTERVAL]
    low, high = (int(end) / 100 for end in shown.text.removesuffix(" pt").split(".."))
    assert low == pytest.approx(change - 1.96 * spread, abs=0.01)
    assert high == pytest.approx(change + 1.96 * spread, abs=0.01)
    title, text = describe_row(loaded, line(build_compare_table(loaded, ALL), "hidden share").key)
    assert (title, "more is better" in text) == ("hidden share", True)


def test_the_hidden_share_of_few_steps_is_not_judged(loaded: LoadedRun) -> None:
    assert loaded.before is not None
    steps = loaded.before.steps
    few = replace(loaded, before=replace(loaded.before, steps=steps[steps["step"] == steps["step"].min()]))
    cells = line(build_compare_table(few, ALL), "hidden share").cells
    assert (cells[INTERVAL].text, cells[VERDICT].text) == ("", "not judged")


def test_a_collective_that_one_side_does_not_use_is_no_merit(loaded: LoadedRun) -> None:
    """The baseline reduces, the run gathers and scatters: the same work, by other collectives."""
    lines = {
        one.cells[METRIC].text: one.cells[VERDICT].text for one in build_compare_table(loaded, ALL).lines
    }
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        for name in ("bytes", "total", "exposed"):
            assert lines[f"{kind} {name}"] == "* differs"
        assert lines[f"{kind} count"] == "* exact"
    assert lines["volume seen"] == "✗ worse"


@pytest.mark.parametrize("side_of", ["run", "baseline"])
def test_what_not_all_ranks_were_seen_in_is_no_merit(loaded: LoadedRun, side_of: str) -> None:
    """There a wait is the least and a transfer the most that it can be; their sum is known."""
    comparison = loaded.report.comparison
    assert comparison is not None
    ranks = loaded.report.time.per_rank if side_of == "run" else comparison.baseline_time
    unsplit = tuple(replace(rank, unsplit_ns=rank.exposed_transfer_ns) for rank in ranks)
    time = replace(loaded.report.time, per_rank=unsplit) if side_of == "run" else loaded.report.time
    if side_of == "baseline":
        comparison = replace(comparison, baseline_time=unsplit)
    unsure = replace(loaded, report=replace(loaded.report, time=time, comparison=comparison))
    verdicts = {
        one.cells[METRIC].text: one.cells[VERDICT].text for one in build_compare_table(unsure, ALL).lines
    }
    assert verdicts["exposed transfer"] == verdicts["exposed wait"] == "not judged"
    bounds = (
        ("exposed transfer", "≤ "),
        ("exposed wait", "≥ "),
        ("rank 0 late: exposed wait per rank", "≥ "),
        ("all_gather transfer", "≤ "),
    )
    for name, sign in bounds:
        shown = line(build_compare_table(unsure, ALL), name)
        signs = [cell.text.startswith(sign) for cell in shown.cells[A : B + 1]]
        assert signs == ([True, False] if side_of == "baseline" else [False, True]), name
        assert sign in describe_row(unsure, shown.key)[1]
    assert (
        "≤ "
        in line(build_compare_table(unsure, TOKENS), "exposed transfer")
        .cells[A if side_of == "baseline" else B]
        .text
    )
    assert verdicts["step time"] == "✗ worse"
    assert verdicts["idle"] == "✗ worse"


def test_names_have_the_room_there_is(loaded: LoadedRun) -> None:
    """Two names that begin alike are told apart where a line is wide enough."""
    run = replace(loaded.report.run, name="tracelens_h100_bert_small")
    long = replace(loaded, report=replace(loaded.report, run=run))
    assert format_header(long, ALL)[1].text == "B tracelens_h10… (this run)"
    assert format_header(long, ALL, 120)[1].text == "B tracelens_h100_bert_small (this run)"
    for width in (80, 120, 200):
        assert len("  ".join(word.text for word in format_header(long, ALL, width))) <= width


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("tracelens_h100_bert_small", "tracelens_h100_qwen_0.5b", ("…bert_small", "…qwen_0.5b")),
        ("zero3", "zero3-prefetch", ("zero3", "zero3-prefetch")),
        ("a long name of a run", "a long name of a run", ("a long name o…", "a long name o…")),
        ("another long name of it", "zero3", ("another long …", "zero3")),
    ],
)
def test_long_names_are_told_apart(before: str, after: str, shown: tuple[str, str]) -> None:
    assert shorten_names(before, after, 14) == shown


def test_only_what_differs(loaded: LoadedRun) -> None:
    everything, differing = build_compare_table(loaded, ALL), build_compare_table(loaded, DIFFERING)
    assert {one.key for one in differing.lines} < {one.key for one in everything.lines}
    names = {one.cells[METRIC].text for one in differing.lines}
    assert "step time" in names
    assert "tokens a step" not in names
    assert "untagged" not in names
    for one in differing.lines:
        assert one.cells[VERDICT].text != "= same"


def test_per_token_is_the_time_of_all_ranks_over_the_tokens(loaded: LoadedRun) -> None:
    table = build_compare_table(loaded, TOKENS)
    assert table.title == "rank time a token: step times of all ranks / tokens of all ranks"
    assert "step time" not in {one.cells[METRIC].text for one in table.lines}
    step = line(table, "rank time").cells
    assert isinstance(step[A], Figure)
    assert isinstance(step[B], Figure)
    report = loaded.report
    assert step[B].how is Aggregation.PER_WORK
    assert "this is  sum of all ranks / tokens" in "\n".join(explain_number(step[B], loaded))
    assert step[B].value == pytest.approx(sum(rank.wall_ns for rank in report.time.per_rank) / 64)
    assert step[VERDICT].text == "✗ worse"
    names = {one.cells[METRIC].text for one in build_compare_table(loaded, TOKENS).lines}
    of_step = {
        one.cells[METRIC].text: one.cells[VERDICT].text for one in build_compare_table(loaded, ALL).lines
    }
    for one in build_compare_table(loaded, TOKENS).lines:
        name = {"rank time": "step time"}.get(one.cells[METRIC].text, one.cells[METRIC].text)
        assert one.cells[VERDICT].text == of_step[name], "both do the same work in a step"
    assert "peak memory" in names, "what is of no step stays"
    assert "all_gather exposed" not in names
    assert "rank 0 compute" not in names


def test_per_token_says_why_not(loaded: LoadedRun, alone: LoadedRun) -> None:
    assert explain_no_tokens(loaded) == ""
    assert explain_no_tokens(alone) == "the steps of both runs are not timed"
    report = loaded.report
    assert report.comparison is not None
    gap = Gap(what="time at equal work", reason="tokens of zero3 are not known", remedy="--tokens-per-step")
    unknown = replace(report, comparison=replace(report.comparison, equal_work=None), gaps=(gap,))
    said = explain_no_tokens(replace(loaded, report=unknown))
    assert said == "tokens of zero3 are not known (--tokens-per-step)"
    partial = replace(report, run=replace(report.run, ranks_loaded=(0,)))
    assert "not all ranks" in explain_no_tokens(replace(loaded, report=partial))


def test_settings_that_differ_come_first(loaded: LoadedRun, compared: Any) -> None:
    everything, differing = build_settings_table(loaded, ALL), build_settings_table(loaded, DIFFERING)
    assert [one.cells[METRIC].text for one in differing.lines] == ["stage", "modelled"]
    assert differing.note == ""
    assert loaded.both is not None
    equal = tuple(replace(setting, b=setting.a) for setting in loaded.both.settings)
    same = replace(loaded, both=replace(loaded.both, settings=equal))
    assert build_settings_table(same, DIFFERING).note == "all settings are the same"
    assert [one.key for one in everything.lines[:2]] == [one.key for one in differing.lines]
    assert len(everything.lines) == len(compared["settings"])
    for one in everything.lines:
        setting = place(compared, one.key)
        assert one.cells[2].text == ("= same" if setting["a"] == setting["b"] else "* differs")


def test_a_row_in_full(loaded: LoadedRun, compared: Any) -> None:
    key = line(build_compare_table(loaded, ALL), "all_gather exposed").key
    title, text = describe_row(loaded, key)
    assert title == "all_gather exposed"
    assert f"in zprof compare A B -f json: {key}" in text
    assert "a step, mean of the ranks" in text
    assert "differs  they differ, and neither side is better for that" in text
    step = describe_row(loaded, line(build_compare_table(loaded, ALL), "exposed transfer").key)[1]
    assert "worse    by more than the doubt of the step time, 16." in step
    title, text = describe_row(loaded, build_settings_table(loaded, DIFFERING).lines[1].key)
    assert title == "training: modelled"
    assert "planted no_prefetch: every unit is gathered when it is already needed" in text


def test_names_that_steer_a_terminal_are_escaped(loaded: LoadedRun) -> None:
    assert loaded.both is not None
    hostile = Setting(where="environment", name="X\x1b[2J", a="[bold]\n1", b="\u202e2")
    both = replace(loaded.both, settings=(hostile,))
    cells = build_settings_table(replace(loaded, both=both), ALL).lines[0].cells
    assert [cell.text for cell in cells[:2]] == ["X\\x1b[2J", "[bold]\\x0a1"]
    assert cells[3].text == "\\u202e2"


def test_turned_a_and_b_change_places(loaded: LoadedRun) -> None:
    asked = RunRequest(path=loaded.run.path, opener=open_run)
    other = swap_baseline(asked, loaded, lambda doing: None)
    assert (other.report.run.name, loaded.report.run.name) == ("ddp", "zero3")
    table, back = build_compare_table(loaded, ALL), build_compare_table(other, ALL)
    for name in ("step time", "peak memory", "rank 0 idle"):
        here, there = line(table, name).cells, line(back, name).cells
        assert (here[A].text, here[B].text) == (there[B].text, there[A].text)
    assert line(back, "step time").cells[VERDICT].text == "✓ better"
    assert swap_baseline(asked, other, lambda doing: None).report == loaded.report


def test_what_is_said_above(loaded: LoadedRun) -> None:
    words = [word.text for word in format_header(loaded, TOKENS)]
    assert words == ["A ddp (baseline)", "B zero3 (this run)", "per token", "all rows"]
    assert [word.text for word in format_short_verdict(loaded)] == [
        "✗ SLOWER",
        "323.5 ms vs 200.3 ms a step, +62 % [+53.1, +69.2]",
    ]
