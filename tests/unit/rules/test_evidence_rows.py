"""The table of evidence: rules and table name the same rows; a row says what its number is a total of."""

import ast
from pathlib import Path

import pytest

from zprof.analysis.signal import make_fact
from zprof.causes.cause import write_evidence
from zprof.causes.units_too_small import CAUSE as units_too_small
from zprof.model.time import Time, Window, WindowPolicy
from zprof.rules import evidence
from zprof.rules.evidence import ROWS

RULES = Path(evidence.__file__).parent
TREES = [ast.parse(file.read_text()) for file in RULES.rglob("*.py") if file.name != "evidence.py"]
KEYS = {value for value in vars(evidence).values() if isinstance(value, str)}


def test_rules_and_table_name_the_same_rows() -> None:
    nodes = [node for tree in TREES for node in ast.walk(tree)]
    texts = {str(node.value).replace(" ", "_") for node in nodes if isinstance(node, ast.Constant)}
    assert set(ROWS) - texts <= KEYS
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "make_fact"]
    rows = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert rows
    assert rows <= set(ROWS)


@pytest.mark.parametrize(("is_whole", "basis"), [(False, "per step"), (True, "in the window")])
def test_a_row_has_the_words_of_its_run_and_its_rule(is_whole: bool, basis: str) -> None:
    window = Window(policy=WindowPolicy.STEP, source="any", is_whole=is_whole)
    fact = make_fact("{kind}_count_per_step", 3, kind="send")
    row = write_evidence(units_too_small, fact, Time(window=window))
    assert (row.key, row.what, row.unit) == ("send_count_per_step", f"sends {basis}", "count")
