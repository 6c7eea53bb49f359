"""``zprof schema``: prints what stands in docs/schemas, and what zprof writes is valid by it."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support.check_runs import Made
from tests.support.judged_checks import CHECKS
from tests.support.reports import SITUATIONS, rank_missing
from zprof.cli import main
from zprof.cli.schema import DOCUMENTS, make_schema
from zprof.diagnosis.diagnose import diagnose
from zprof.model.json_format import to_json
from zprof.run.reader import load

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs/schemas"
RUNS = ROOT / "tests/data/tui"


@cache
def validator(document: str) -> "Draft202012Validator":
    # not above: its grammars take seconds, and every worker imports this file
    from jsonschema import Draft202012Validator

    return Draft202012Validator(make_schema(document))


def first_error(document: str, text: str) -> str:
    found = next(validator(document).iter_errors(json.loads(text)), None)
    return "" if found is None else f"{found.json_path}: {found.message}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_published_schema_is_the_one_that_is_made(
    document: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", document]) == 0
    printed = capsys.readouterr().out
    assert (PUBLISHED / f"{document}.json").read_text(encoding="utf-8") == printed, (
        f"zprof schema {document} -o docs/schemas/{document}.json --force"
    )
    validator(document).check_schema(json.loads(printed))


@pytest.mark.parametrize("situation", ["slower", "straggler", "nothing_timed", "snapshot", "trace"])
def test_the_report_of_a_situation_is_valid(situation: str) -> None:
    assert not first_error("report", to_json(SITUATIONS[situation]()))


@pytest.mark.slow
def test_the_report_of_a_recorded_run_is_valid() -> None:
    report = diagnose(load(RUNS / "zero3"), load(RUNS / "ddp"))
    assert not first_error("report", to_json(report))


def test_a_check_and_a_baseline_are_valid() -> None:
    assert not first_error("check", to_json(CHECKS["failed"]))
    unbounded = replace(CHECKS["noisy"].results[1], interval=(-1.0, float("inf")))
    assert not first_error("check", to_json(replace(CHECKS["failed"], results=(unbounded,))))
    for made in (Made(), Made(memory=False), Made(walls=())):
        assert not first_error("baseline", to_json(made.baseline))


def test_a_report_of_another_version_is_not_valid() -> None:
    document = json.loads(to_json(rank_missing())) | {"schema": "zprof.report/2"}
    assert first_error("report", json.dumps(document)).startswith("$.schema: ")
