"""Each comparison of the whole-process benchmarks names processes that its group runs."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import answer, guard
from benchmarks.contenders import Group


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Group]:
    """All groups, without their inputs."""
    for module in (answer, guard):
        for name in ("write_trace", "simulate_traces", "import_traces"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_: None)
    planned = [make(tmp_path, answer.Sizes()) for make in answer.PLANS.values()]
    found = [group for plan in planned for group in (plan if isinstance(plan, tuple) else (plan,))]
    return [*found, guard.plan(tmp_path)]


def test_comparisons_name_processes_that_run(groups: list[Group]) -> None:
    for group in groups:
        names = [contender.name for contender in group.contenders]
        assert len(set(names)) == len(names)
        compared = {name for one in group.comparisons for name in (one.contender, one.peer) if name}
        assert compared <= set(names)


def test_what_is_kept_runs_after_the_same_command(groups: list[Group]) -> None:
    kept = 0
    for group in groups:
        for before, after in pairwise(group.contenders):
            if after.cache == "kept":
                kept += 1
                assert before.arguments == after.arguments
        assert group.contenders[0].cache == "fresh"
    assert kept
