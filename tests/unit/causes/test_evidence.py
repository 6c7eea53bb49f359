"""Facts and their labels: each fact has a label, which says what the number is a total of."""

import ast
from pathlib import Path

import pytest

import zprof
from zprof.analysis.signal import make_fact
from zprof.causes import load_causes
from zprof.causes.cause import COMMON_EVIDENCE, write_evidence
from zprof.causes.units_too_small import CAUSE as units_too_small
from zprof.model.time import Time, Window, WindowPolicy

PACKAGE = Path(zprof.__file__).parent
LABELS = {*COMMON_EVIDENCE, *(key for cause in load_causes().values() for key in cause.evidence)}


def test_each_fact_has_a_label() -> None:
    folders = ("causes", "analysis", "diagnosis", "step")
    nodes = [
        node
        for folder in folders
        for file in (PACKAGE / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    ]
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "make_fact"]
    stated = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert len(stated) > 100
    assert stated <= LABELS


@pytest.mark.parametrize(("is_whole", "basis"), [(False, "per step"), (True, "in the window")])
def test_a_label_has_the_words_of_its_run_and_its_fact(is_whole: bool, basis: str) -> None:
    window = Window(policy=WindowPolicy.STEP, source="any", is_whole=is_whole)
    fact = make_fact("{kind}_count_per_step", 3, kind="send")
    row = write_evidence(units_too_small, fact, Time(window=window))
    assert (row.key, row.what, row.unit) == ("send_count_per_step", f"sends {basis}", "count")
