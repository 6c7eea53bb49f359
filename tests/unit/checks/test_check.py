"""The whole check: the worst gate is the answer, and nothing judged is no pass."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.check_runs import ENVIRONMENT, MS, Made, limit
from tests.support.memories import HOSTILE
from zprof.checks.check import check
from zprof.checks.config import default_limits
from zprof.model.check import Check, Limit
from zprof.model.errors import BadInput
from zprof.model.json_format import to_json, to_tree
from zprof.model.tenants import Tenant

BASE = Made()
PASSES = limit("peak_memory", change_ratio=0.0)
FAILS = limit("collective_bytes", value=1.0)
WARNS = limit("collective_count", value=1.0, warns=True)
UNKNOWN = limit("peak_memory.gradients", value=1.0)
SKIPPED = limit("overlap_ratio", change_points=-0.05, origin="default")


def checked(*limits: Limit, run: Made = BASE, base: Made | None = BASE) -> Check:
    return check(run.report, limits, None if base is None else base.baseline, environment=ENVIRONMENT)


@pytest.mark.parametrize(
    ("limits", "outcome", "code"),
    [
        ((PASSES,), "passed", 0),
        ((PASSES, WARNS), "warned", 0),
        ((PASSES, WARNS, UNKNOWN), "unknown", 3),
        ((UNKNOWN, FAILS, PASSES, WARNS), "failed", 1),
        ((SKIPPED, PASSES), "passed", 0),
        ((SKIPPED,), "unknown", 3),
        ((), "unknown", 3),
    ],
)
def test_the_worst_gate_is_the_answer(limits: tuple[Limit, ...], outcome: str, code: int) -> None:
    silent = {"exposed": (0,) * 8, "collective": (0,) * 8, "wait": 0}
    run = replace(BASE, **silent, tenants={Tenant.PARAMETERS: 1})  # type: ignore[arg-type]
    found = checked(*limits, run=run, base=run)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert [result.limit for result in found.results] == list(limits)
    if limits in ((), (SKIPPED,)):
        assert "nothing was judged" in found.notices[0]


def test_a_first_run_passes_with_a_notice() -> None:
    found = checked(PASSES, SKIPPED, base=None)
    assert (found.outcome, found.baseline) == ("passed", None)
    assert {result.outcome for result in found.results} == {"skipped"}
    assert found.notices == (
        "no baseline yet: limits that need one were skipped; save one: zprof baseline save RUN",
    )
    assert checked(FAILS, base=None).outcome == "failed"


def test_a_first_run_that_measured_nothing_is_no_pass() -> None:
    assert checked(PASSES, run=replace(BASE, memory=False, walls=()), base=None).outcome == "unknown"


def test_a_run_passes_against_itself_by_default() -> None:
    found = checked(*default_limits())
    assert found.outcome == "passed"
    assert {result.outcome for result in found.results} == {"passed"}


def test_a_run_without_a_window_is_not_green_by_default() -> None:
    for lost in ({"memory": False}, {"walls": ()}):
        assert checked(*default_limits(), run=replace(BASE, **lost)).outcome == "unknown"


def test_a_gate_that_there_is_none_of() -> None:
    with pytest.raises(BadInput, match="there is no gate"):
        checked(limit("peak_memroy", value=1.0))


def test_every_sentence_is_one_line_whatever_the_names() -> None:
    hostile = f"{HOSTILE}</script><img onerror=x>]]>|`::error::" + "x" * 10_000
    report = replace(
        BASE, name=hostile, collectives=((hostile, hostile, 1.0, 10**6),), walls=(200 * MS,) * 8
    ).report
    rank = replace(report.memory.per_rank[0], peak_phase=hostile, peak_bytes=10**6)
    report = replace(report, memory=replace(report.memory, per_rank=(rank, report.memory.per_rank[1])))
    limits = [*default_limits(), replace(PASSES, said=hostile), limit("peak_memory.activations", value=1.0)]
    found = check(report, limits, BASE.baseline, environment={"torch": "2.13.0"})
    assert found.outcome == "failed"
    for result in found.results:
        texts = (result.sentence, result.subject, result.grew, result.remedy)
        assert all(text.isprintable() and len(text) < 700 for text in texts), texts
    assert to_json(found)
    assert found.run.isprintable()


def leaf(tree: Any, path: str) -> Any:
    """What stands at a path such as ``memory.per_rank[1].peak_bytes``."""
    for part in path.replace("[", ".").replace("]", "").split("."):
        tree = tree[int(part)] if part.isdigit() else tree[part]
    return tree


def test_a_leaf_is_where_the_value_stands_in_the_report() -> None:
    run = replace(BASE, peaks=(900, 1000), collectives=BASE.collectives[:1])
    tree = to_tree(run.report)
    gates = (
        "peak_memory",
        "peak_memory.activations",
        "peak_memory.untagged",
        "collective_bytes",
        "collective_count",
    )
    for result in checked(*(limit(gate, value=1e9) for gate in gates), run=run).results:
        assert leaf(tree, result.leaf) == result.value, result.leaf
    summed = [
        limit(gate, value=1e9) for gate in ("collective_bytes", "step_time", "exposed_wait", "exposed_ratio")
    ]
    for result in checked(*summed).results:
        assert isinstance(leaf(to_tree(BASE.report), result.leaf), list), result.leaf
