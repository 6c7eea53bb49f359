"""The whole check: the worst gate is the outcome, and nothing judged is no pass."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.check_runs import BASE, ENVIRONMENT, MS, check_run, limit
from tests.support.memories import HOSTILE
from zprof.checks.check import check
from zprof.checks.config import default_limits
from zprof.model.comparison import Limit
from zprof.model.findings import Confidence
from zprof.model.json_format import to_json, to_tree
from zprof.model.tenants import Tenant
from zprof.reports.pages.check import name_causes, select_causes

PASSES = limit("peak_memory", change_ratio=0.0)
FAILS = limit("collective_bytes", value=1.0)
WARNS = limit("collective_count", value=1.0, warns=True)
UNKNOWN = limit("peak_memory.gradients", value=1.0)
SKIPPED = limit("overlap_ratio", change_points=-0.05, origin="default")


@pytest.mark.parametrize(
    ("limits", "outcome", "code"),
    [
        ((PASSES, WARNS), "warned", 0),
        ((PASSES, WARNS, UNKNOWN), "unknown", 3),
        ((UNKNOWN, FAILS, PASSES, WARNS), "failed", 1),
        ((SKIPPED, PASSES), "passed", 0),
        ((SKIPPED,), "unknown", 3),
        ((), "unknown", 3),
    ],
)
def test_the_worst_gate_is_the_outcome(limits: tuple[Limit, ...], outcome: str, code: int) -> None:
    silent: dict[str, Any] = {"exposed": (0,) * 8, "collective": (0,) * 8, "wait": 0}
    run = replace(BASE, **silent, tenants={Tenant.PARAMETERS: 1})
    found = check_run(limits, run, run)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert [result.limit for result in found.results] == list(limits)


def test_a_first_run_passes_unless_it_breaks_a_value_or_measured_nothing() -> None:
    found = check_run([PASSES, SKIPPED], base=None)
    assert (found.outcome, found.baseline) == ("passed", None)
    assert {result.outcome for result in found.results} == {"skipped"}
    assert "zprof baseline save" in found.notices[0]
    assert check_run([FAILS], base=None).outcome == "failed"
    assert check_run([PASSES], replace(BASE, memory=False, walls=()), None).outcome == "unknown"


def test_by_default_a_run_passes_against_itself_and_not_without_a_window() -> None:
    found = check_run(default_limits())
    assert {result.outcome for result in found.results} == {found.outcome} == {"passed"}
    for lost in ({"memory": False}, {"walls": ()}):
        assert check_run(default_limits(), replace(BASE, **lost)).outcome == "unknown"


@pytest.mark.parametrize(
    "lost",
    [
        {"walls": ()},
        {"memory": False},
        {"walls": (100 * MS,), "exposed": (20 * MS,), "collective": (40 * MS,)},
        {"upper_time": True},
    ],
    ids=["times", "memory", "steps", "bounds"],
)
def test_what_a_required_baseline_cannot_judge_is_no_pass(lost: dict[str, Any]) -> None:
    weak = replace(BASE, **lost)
    pairs = [(BASE, weak), (weak, weak)]
    for run, base in pairs if weak.upper_time else [*pairs, (weak, BASE)]:
        found = check_run(default_limits(), run, base, requires_baseline=True)
        assert (found.outcome, found.exit_code) == ("unknown", 3)
        assert check_run(default_limits(), run, base).outcome in ("warned", "unknown")


def test_a_required_baseline_does_not_ask_for_what_neither_run_has() -> None:
    """A single rank has no collectives; a gate that only warns cannot fail."""
    alone = replace(BASE, world=1, timed=(0,), peaks=(1000,), collectives=(), wait=0)
    alone = replace(alone, exposed=(0,) * 8, collective=(0,) * 8)
    assert check_run(default_limits(), alone, alone, requires_baseline=True).outcome == "passed"
    few = replace(BASE, walls=(90 * MS, 110 * MS), exposed=(20 * MS,) * 2, collective=(40 * MS,) * 2)
    limits = [PASSES, limit("step_time", change_ratio=0.0, confidence=0.95, warns=True, origin="default")]
    assert check_run(limits, few, few, requires_baseline=True).outcome == "warned"


def test_a_failed_gate_has_its_cause() -> None:
    late = replace(BASE, wait=9 * MS, late=1.0, peaks=(2000, 900))
    of_time, of_memory = limit("exposed_wait", change_ratio=0.1), limit("peak_memory", change_ratio=0.1)
    for limits, is_named in (([of_time], True), ([of_memory, of_time], True), ([of_memory], False)):
        causes = select_causes(check_run(limits, late), late.report)
        assert [cause.id for cause in causes] == ["ZP301"] * is_named
        assert all("straggler_rank (ZP301" in line for line in name_causes(causes))
    guess = replace(late, late_confidence=Confidence.LOW).report
    assert select_causes(check_run([of_time], late), guess) == ()
    assert select_causes(check_run([PASSES], BASE), late.report) == ()


def test_every_sentence_is_one_line_whatever_the_names() -> None:
    hostile = f"{HOSTILE}</script><img onerror=x>]]>|`::error::" + "x" * 10_000
    run = replace(BASE, name=hostile, collectives=((hostile, hostile, 1.0, 10**6),), walls=(200 * MS,) * 8)
    report = run.report
    rank = replace(report.memory.per_rank[0], peak_phase=hostile, peak_bytes=10**6)
    report = replace(report, memory=replace(report.memory, per_rank=(rank, report.memory.per_rank[1])))
    limits = [*default_limits(), replace(PASSES, text=hostile), limit("peak_memory.activations", value=1.0)]
    found = check(report, limits, BASE.baseline, environment=ENVIRONMENT)
    assert found.outcome == "failed"
    for result in found.results:
        texts = (result.sentence, result.subject, result.grew, result.remedy)
        assert all(text.isprintable() and len(text) < 700 for text in texts), texts
    assert to_json(found)
    assert found.run.isprintable()


def test_a_leaf_is_where_the_value_stands_in_the_report() -> None:
    run = replace(BASE, peaks=(900, 1000), collectives=BASE.collectives[:1])
    tree = to_tree(run.report)
    memory = ("peak_memory", "peak_memory.activations", "peak_memory.untagged")
    limits = [limit(gate, value=1e9) for gate in (*memory, "collective_bytes", "collective_count")]
    for result in check_run(limits, run).results:
        assert leaf(tree, result.leaf) == result.value, result.leaf
    summed = [limit(gate, value=1e9) for gate in ("collective_bytes", "step_time", "exposed_wait")]
    for result in check_run(summed).results:
        assert isinstance(leaf(to_tree(BASE.report), result.leaf), list), result.leaf


def leaf(tree: Any, path: str) -> Any:
    """The value at a path such as ``memory.per_rank[1].peak_bytes``."""
    for part in path.replace("[", ".").replace("]", "").split("."):
        tree = tree[int(part)] if part.isdigit() else tree[part]
    return tree
