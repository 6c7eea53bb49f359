"""The skill: its commands exist, and its evaluation tells right answers from wrong and from guessed ones."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import zprof
from zprof.base.errors import ZprofError
from zprof.cli.registry import COMMANDS
from zprof.model.findings import Confidence, Finding
from zprof.model.report import VerdictStatus

ROOT = Path(__file__).parents[3] / "skills/zprof"
_RANKS = re.compile(r"\(ranks (\d+) to (\d+)\)")
_RANK = re.compile(r"\brank (\d+)\b")


@pytest.fixture(scope="module")
def evaluation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluate", ROOT / "evaluation/evaluate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases(evaluation: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("evaluation")
    evaluation.make_cases(folder)
    return folder


def test_the_skill_names_commands_and_is_read_by_agents() -> None:
    text = (ROOT / "SKILL.md").read_text()
    _, head, body = text.split("---\n", 2)
    assert re.findall(r"^(\w+):", head, re.MULTILINE) == ["name", "description"]
    assert len(head) < 1024
    used = {name for name in re.findall(r"zprof (\w+)", body) if name.islower()} - {"reads"}
    assert used <= {entry.name for entry in COMMANDS}
    assert len(body.splitlines()) < 120


def read_ranks(finding: Finding) -> list[int]:
    found = _RANKS.search(finding.sentence)
    if found:
        return list(range(int(found[1]), int(found[2]) + 1))
    return [int(rank) for rank in _RANK.findall(finding.sentence)[:1]]


def answer_by_reading(path: Path) -> dict[str, Any]:
    """What somebody answers who reads the first finding of zprof, as the skill says."""
    unknown = {"id": path.name, "cause": None, "ranks": None, "saving_ns": None, "unknown": True}
    try:
        report = zprof.diagnose(path)
    except ZprofError:
        return unknown
    if report.verdict.status is VerdictStatus.INCONCLUSIVE:
        return unknown
    finding = next((each for each in report.findings if each.confidence is not Confidence.LOW), None)
    if finding is None:
        return unknown | {"unknown": False}
    return {
        "id": path.name,
        "cause": finding.id,
        "ranks": read_ranks(finding),
        "saving_ns": list(finding.saving_ns),
        "unknown": False,
    }


def test_who_follows_the_skill_gets_all_points(evaluation: ModuleType, cases: Path) -> None:
    questions = json.loads((cases / "questions.json").read_text())
    assert len(questions) == 12
    answers = [answer_by_reading(cases / question["input"]) for question in questions]
    points = evaluation.grade(cases, answers)
    assert {name: got for name, (got, _) in points.items()} == {
        name: most for name, (_, most) in points.items()
    }


@pytest.mark.parametrize(
    "guess",
    [
        {"cause": "straggler_rank", "ranks": [0], "saving_ns": [0, 1e12], "unknown": False},
        {"cause": None, "ranks": None, "saving_ns": None, "unknown": True},
        {"cause": None, "ranks": None, "saving_ns": None, "unknown": False},
    ],
)
def test_guesses_get_few_points(guess: dict[str, Any], evaluation: ModuleType, cases: Path) -> None:
    answers = [{"id": case["id"], **guess} for case in evaluation.read_cases()]
    points = evaluation.grade(cases, answers).values()
    assert sum(got for got, _ in points) <= 0.15 * sum(most for _, most in points)


def test_truth_is_not_in_what_is_given(cases: Path) -> None:
    assert not list((cases / "inputs").rglob("truth*.json"))
    assert "cause" not in (cases / "questions.json").read_text()
