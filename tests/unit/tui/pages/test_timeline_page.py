"""The ledger of one step in a line: leaves that sum, each with its meaning."""

from dataclasses import replace

from zprof.model.time import LEDGER_TERMS
from zprof.tui.figures import Figure
from zprof.tui.metric_help.metric import parse_indices
from zprof.tui.metric_help.registry import find_help
from zprof.tui.screens.timeline import build_step_table, find_step_place
from zprof.tui.session import LoadedRun, Selection


def figures(loaded: LoadedRun, selected: Selection) -> list[Figure]:
    return build_step_table(loaded, selected).figures()


def test_it_is_the_step_that_is_selected_and_sums(alone: LoadedRun) -> None:
    for entry in alone.report.time.steps:
        wall, *terms, hidden = figures(alone, Selection(rank=entry.rank, step=entry.step))
        assert wall.value == entry.wall_ns
        assert sum(term.value or 0 for term in terms) == entry.wall_ns
        assert {leaf.rpartition(".")[2] for term in terms for leaf in term.leaves} == set(LEDGER_TERMS)
        assert hidden.value == entry.overlapped_ns


def test_every_number_has_its_meaning_and_rows(alone: LoadedRun) -> None:
    entry = alone.report.time.steps[-1]
    for figure in figures(alone, Selection(rank=entry.rank, step=entry.step)):
        meaning = find_help(figure.leaves[0])
        assert meaning is not None, figure
        assert meaning.rows is not None
        rows = meaning.rows(alone.analysis, parse_indices(figure.leaves[0]))
        assert len(rows)
        name = figure.leaves[0].rpartition(".")[2]
        if "rank" in rows.columns:
            assert rows["rank"].tolist() == [entry.rank]
            assert rows[name].tolist() == [figure.value]


def test_the_collectives_behind_a_term_sum_to_it_where_they_do_not_cross_steps(alone: LoadedRun) -> None:
    entry = alone.report.time.steps[0]
    place = find_step_place(alone, Selection(rank=entry.rank, step=entry.step))
    meaning = find_help("time.steps[0].exposed_transfer_ns")
    assert meaning is not None
    assert meaning.rows is not None
    rows = meaning.rows(alone.analysis, (place,))
    assert rows["exposed_transfer_ns"].is_monotonic_decreasing
    assert rows["exposed_transfer_ns"].sum() == entry.exposed_transfer_ns


def test_what_not_all_ranks_were_seen_in_is_a_bound(alone: LoadedRun) -> None:
    entry = alone.report.time.steps[0]
    selected = Selection(rank=entry.rank, step=entry.step)
    assert not any(sign in found.text for found in figures(alone, selected) for sign in "≤≥")
    ranks = [replace(one, unsplit_ns=int(one.rank == entry.rank)) for one in alone.report.time.per_rank]
    time = replace(alone.report.time, per_rank=tuple(ranks))
    unsure = replace(alone, report=replace(alone.report, time=time))
    shown = {found.leaves[0].rpartition(".")[2]: found.text[:2] for found in figures(unsure, selected)}
    assert shown.pop("exposed_wait_ns") == "≥ "
    assert shown.pop("exposed_transfer_ns") == "≤ "
    assert not any(text in ("≤ ", "≥ ") for text in shown.values())


def test_a_step_that_was_not_timed_has_no_line(alone: LoadedRun) -> None:
    assert build_step_table(alone, Selection(rank=0, step=999)).lines == ()
    assert build_step_table(alone, Selection()).lines == ()


def test_titles_are_the_key_to_the_glyphs(alone: LoadedRun) -> None:
    titles = [column.title for column in build_step_table(alone, Selection(), ascii_only=True).columns]
    assert titles[1:4] == ["# compute", "= transfer", "w wait"]
    assert all(title.isascii() for title in titles)
