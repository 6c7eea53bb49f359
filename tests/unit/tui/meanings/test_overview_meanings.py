"""Numbers of time and of the verdict can be opened: what they mean, their inputs, their rows."""

import pandas as pd
import pytest

from zprof.model.time import LEDGER_TERMS
from zprof.tui.figures import How, Unit, figure, ranged, resolve
from zprof.tui.meanings.meaning import Meaning, kind_of
from zprof.tui.meanings.overview import OVERVIEW
from zprof.tui.meanings.registry import MEANINGS, meaning_of
from zprof.tui.meanings.time import TIME
from zprof.tui.popups.number import rows_behind, said_of
from zprof.tui.session import Loaded

NOT_ON_A_CPU = ("reserved_unused_bytes", "non_pytorch_bytes")


def at_first(kind: str) -> str:
    """The first leaf of a kind."""
    return kind.replace("[]", "[0]")


@pytest.mark.parametrize("meaning", [*TIME, *OVERVIEW], ids=lambda meaning: meaning.leaf)
def test_each_is_said_and_its_inputs_are_there(loaded: Loaded, meaning: Meaning) -> None:
    assert MEANINGS[meaning.leaf] is meaning, "none stands in the way of another"
    assert meaning.says.endswith(".")
    number = figure(loaded.tree, Unit.COUNT, at_first(meaning.leaf))
    said = "\n".join(said_of(number, loaded))
    assert meaning.says in said
    assert "unknown" not in said.partition("\ninputs")[2], said


@pytest.mark.parametrize("meaning", [*TIME, *OVERVIEW], ids=lambda meaning: meaning.leaf)
def test_each_is_of_a_leaf_that_a_report_has(loaded: Loaded, meaning: Meaning) -> None:
    """Of this one, but for sums, for what a CPU cannot measure, and for what none of its findings has."""
    leaf = at_first(meaning.leaf)
    known = list(resolve(loaded.tree, leaf)) != [None]
    assert known or leaf.endswith(("_delta[0]", "unclaimed[0]", "saving_bytes[0]", *NOT_ON_A_CPU)), leaf


@pytest.mark.parametrize("term", LEDGER_TERMS)
def test_a_term_has_its_formula_and_rows(loaded: Loaded, term: str) -> None:
    for stem in ("time.per_rank", "comparison.baseline_time"):
        number = figure(loaded.tree, Unit.NS, f"{stem}[1].{term}")
        meaning = meaning_of(number.leaves[0])
        assert meaning is not None
        assert meaning.formula
        rows = rows_behind(number, loaded)
        assert rows is not None
        assert len(rows)
        assert set(rows["rank"]) == {1}, "of this rank only"


def test_rows_of_the_whole_are_of_all_ranks(loaded: Loaded) -> None:
    number = figure(loaded.tree, Unit.NS, "time.per_rank[*].wall_ns", how=How.MEAN)
    rows = rows_behind(number, loaded)
    assert rows is not None
    assert set(rows["rank"]) == {0, 1}
    assert rows["wall_ns"].is_monotonic_decreasing
    assert rows["wall_ns"].mean() == pytest.approx(number.value, abs=1)


def test_rows_of_the_baseline_are_its_own(loaded: Loaded) -> None:
    number = figure(loaded.tree, Unit.NS, "comparison.baseline_time[*].wall_ns", how=How.MEAN)
    rows = rows_behind(number, loaded)
    assert rows is not None
    assert rows["wall_ns"].mean() == pytest.approx(number.value, abs=1)


def test_the_rows_of_exposed_transfer_are_collectives_the_worst_first(loaded: Loaded) -> None:
    rows = rows_behind(figure(loaded.tree, Unit.NS, "time.per_rank[0].exposed_transfer_ns"), loaded)
    assert rows is not None
    assert rows["exposed_transfer_ns"].is_monotonic_decreasing
    known = loaded.analysis.collectives
    assert rows["exposed_transfer_ns"].iloc[0] == known[known["rank"] == 0]["exposed_transfer_ns"].max()
    assert "all_gather" in set(rows["kind"].astype(str))


def test_what_the_host_did_stands_behind_idle(loaded: Loaded) -> None:
    rows = rows_behind(figure(loaded.tree, Unit.NS, "time.per_rank[0].idle_ns"), loaded)
    assert isinstance(rows, pd.DataFrame)
    assert "launch_ns" in rows.columns


def test_a_saving_names_both_of_its_leaves(loaded: Loaded) -> None:
    low, high = (figure(loaded.tree, Unit.NS, f"findings[0].saving_ns[{end}]") for end in (0, 1))
    said = "\n".join(said_of(ranged(low, high), loaded))
    assert "findings[0].saving_ns[0]" in said
    assert "findings[0].saving_ns[1]" in said
    assert kind_of(high.leaves[0]) == "findings[].saving_ns[]"
