"""Numbers of time and of the verdict can be opened: what they mean, their inputs, their rows."""

import pandas as pd
import pytest

from zprof.model.time import LEDGER_TERMS
from zprof.tui.figures import Aggregation, Unit, figure, make_range, resolve
from zprof.tui.metric_help.metric import MetricHelp, strip_indices
from zprof.tui.metric_help.overview import OVERVIEW
from zprof.tui.metric_help.registry import METRIC_HELP, find_help
from zprof.tui.metric_help.time import TIME
from zprof.tui.number_popup import explain_number, find_rows
from zprof.tui.session import LoadedRun

NOT_ON_A_CPU = ("reserved_unused_bytes", "non_pytorch_bytes")


def at_first(kind: str) -> str:
    """The first leaf of a kind."""
    return kind.replace("[]", "[0]")


@pytest.mark.parametrize("meaning", [*TIME, *OVERVIEW], ids=lambda meaning: meaning.leaf)
def test_each_is_said_and_its_inputs_are_there(loaded: LoadedRun, meaning: MetricHelp) -> None:
    assert METRIC_HELP[meaning.leaf] is meaning, "none stands in the way of another"
    assert meaning.says.endswith(".")
    number = figure(loaded.tree, Unit.COUNT, at_first(meaning.leaf))
    said = "\n".join(explain_number(number, loaded))
    assert meaning.says in said
    assert "unknown" not in said.partition("\ninputs")[2], said


@pytest.mark.parametrize("meaning", [*TIME, *OVERVIEW], ids=lambda meaning: meaning.leaf)
def test_each_is_of_a_leaf_that_a_report_has(loaded: LoadedRun, meaning: MetricHelp) -> None:
    """Of this one, but for sums, for what a CPU cannot measure, and for what none of its findings has."""
    leaf = at_first(meaning.leaf)
    known = list(resolve(loaded.tree, leaf)) != [None]
    assert known or leaf.endswith(("_delta[0]", "unclaimed[0]", "saving_bytes[0]", *NOT_ON_A_CPU)), leaf


@pytest.mark.parametrize("term", LEDGER_TERMS)
def test_a_term_has_its_formula_and_rows(loaded: LoadedRun, term: str) -> None:
    for stem in ("time.per_rank", "comparison.baseline_time"):
        number = figure(loaded.tree, Unit.NS, f"{stem}[1].{term}")
        meaning = find_help(number.leaves[0])
        assert meaning is not None
        assert meaning.formula
        rows = find_rows(number, loaded)
        assert rows is not None
        assert len(rows)
        assert set(rows["rank"]) == {1}, "of this rank only"


def test_rows_of_the_whole_are_of_all_ranks(loaded: LoadedRun) -> None:
    number = figure(loaded.tree, Unit.NS, "time.per_rank[*].wall_ns", how=Aggregation.MEAN)
    rows = find_rows(number, loaded)
    assert rows is not None
    assert set(rows["rank"]) == {0, 1}
    assert rows["wall_ns"].is_monotonic_decreasing
    assert rows["wall_ns"].mean() == pytest.approx(number.value, abs=1)


def test_rows_of_the_baseline_are_its_own(loaded: LoadedRun) -> None:
    number = figure(loaded.tree, Unit.NS, "comparison.baseline_time[*].wall_ns", how=Aggregation.MEAN)
    rows = find_rows(number, loaded)
    assert rows is not None
    assert rows["wall_ns"].mean() == pytest.approx(number.value, abs=1)


def test_the_rows_of_exposed_transfer_are_collectives_the_worst_first(loaded: LoadedRun) -> None:
    rows = find_rows(figure(loaded.tree, Unit.NS, "time.per_rank[0].exposed_transfer_ns"), loaded)
    assert rows is not None
    assert rows["exposed_transfer_ns"].is_monotonic_decreasing
    known = loaded.analysis.collectives
    assert rows["exposed_transfer_ns"].iloc[0] == known[known["rank"] == 0]["exposed_transfer_ns"].max()
    assert "all_gather" in set(rows["kind"].astype(str))


def test_what_the_host_did_stands_behind_idle(loaded: LoadedRun) -> None:
    rows = find_rows(figure(loaded.tree, Unit.NS, "time.per_rank[0].idle_ns"), loaded)
    assert isinstance(rows, pd.DataFrame)
    assert "launch_ns" in rows.columns


def test_a_saving_names_both_of_its_leaves(loaded: LoadedRun) -> None:
    low, high = (figure(loaded.tree, Unit.NS, f"findings[0].saving_ns[{end}]") for end in (0, 1))
    said = "\n".join(explain_number(make_range(low, high), loaded))
    assert "findings[0].saving_ns[0]" in said
    assert "findings[0].saving_ns[1]" in said
    assert strip_indices(high.leaves[0]) == "findings[].saving_ns[]"
