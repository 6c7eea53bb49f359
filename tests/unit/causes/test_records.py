"""Records: each fact has a label, each sentence its words, and a label says what its number is a total of."""

import ast
from collections.abc import Iterable
from pathlib import Path
from string import Formatter

import pytest

import zprof
from zprof.analysis.analysis import make_fact
from zprof.causes import load_causes
from zprof.causes.cause import COMMON_EVIDENCE, Cause, write_evidence
from zprof.causes.units_too_small import CAUSE as units_too_small
from zprof.model.time import Time, Window, WindowPolicy

PACKAGE = Path(zprof.__file__).parent


def parse(module: str) -> list[ast.AST]:
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    return list(ast.walk(ast.parse(path.read_text()))) if path.is_file() else []


def stated_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the keys of the facts that are made there."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "make_fact"]
    keys = [node for call in calls for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)]
    return {key.value for key in keys if isinstance(key.value, str)}


@pytest.mark.parametrize("cause", load_causes().values(), ids=lambda cause: cause.name)
def test_each_fact_of_a_cause_has_its_label(cause: Cause) -> None:
    assert stated_in(parse(f"zprof.causes.{cause.name}")) <= {*cause.evidence, *COMMON_EVIDENCE}


def test_facts_of_shared_measures_have_labels() -> None:
    files = [
        file for folder in ("analysis", "diagnosis", "step") for file in (PACKAGE / folder).rglob("*.py")
    ]
    stated = stated_in(node for file in files for node in ast.walk(ast.parse(file.read_text())))
    labels = {key for cause in load_causes().values() for key in cause.evidence}
    assert stated
    assert stated <= labels | {*COMMON_EVIDENCE}


@pytest.mark.parametrize("cause", load_causes().values(), ids=lambda cause: cause.name)
def test_the_words_of_each_sentence_are_given(cause: Cause) -> None:
    """By the file of the cause, by what it shares with others, or by the run: a sentence never lacks one."""
    nodes = parse(f"zprof.causes.{cause.name}")
    shared = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    nodes += [node for name in shared if name.startswith("zprof.") for node in parse(name)]
    given = {node.value for node in nodes if isinstance(node, ast.Constant)}
    fields = [field for text in (cause.sentence, cause.observed) for field in Formatter().parse(text)]
    assert {name for _, name, _, _ in fields if name is not None} <= given


@pytest.mark.parametrize(("is_whole", "basis"), [(False, "per step"), (True, "in the window")])
def test_a_label_has_the_words_of_its_run_and_its_fact(is_whole: bool, basis: str) -> None:
    window = Window(policy=WindowPolicy.STEP, source="any", is_whole=is_whole)
    fact = make_fact("{kind}_count_per_step", 3, kind="send")
    row = write_evidence(units_too_small, fact, Time(window=window))
    assert (row.key, row.what, row.unit) == ("send_count_per_step", f"sends {basis}", "count")
