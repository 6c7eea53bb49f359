"""``zprof schema``: prints what stands in docs/schemas, and what zprof writes is valid by it."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.reports import SITUATIONS, rank_missing
from zprof.cli import main
from zprof.cli.schema import DOCUMENTS, schema_of
from zprof.model.baseline import Baseline, CollectiveBaseline, Conditions, MemoryBaseline, TimeBaseline
from zprof.model.check import Check, GateResult, Limit, Outcome
from zprof.model.json_format import to_json
from zprof.rules.diagnose import diagnose
from zprof.run.reader import load

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs/schemas"
RUNS = ROOT / "tests/data/tui"

CHECK = Check(
    zprof_version="0",
    run="zero3",
    baseline=None,
    outcome=Outcome.UNKNOWN,
    results=(
        GateResult(
            limit=Limit(gate="step_time", unit="ns", change_ratio=0.03, said="+3%", origin="default"),
            outcome=Outcome.UNKNOWN,
            interval=(-1.0, float("inf")),
            sentence="step_time: too few steps",
        ),
    ),
    notices=("no baseline",),
)
BASELINE = Baseline(
    zprof_version="0",
    name="zero3",
    conditions=Conditions(
        device="cpu",
        backend="gloo",
        world_size=2,
        engine="fsdp2",
        stage=None,
        torch="2.8",
        modelled=("link",),
    ),
    memory=MemoryBaseline(peak_bytes=3, untagged_bytes=1, tenants={"parameters": 2}),
    collectives=(CollectiveBaseline(kind="all_gather", dtype="float", group_size=2, count=1.5, bytes=8),),
    time=TimeBaseline(
        wall_ns=(1, 2), exposed_ns=(1, 1), exposed_ratio=None, overlap_ratio=0.5, exposed_wait_ns=0
    ),
)


@cache
def validator(document: str) -> "Draft202012Validator":
    # not above: its grammars take seconds, and every worker imports this file
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema_of(document))


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


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_report_of_every_situation_is_valid(situation: str) -> None:
    assert not first_error("report", to_json(SITUATIONS[situation]()))


@pytest.mark.parametrize("run", ["ddp", "zero3"])
def test_the_report_of_a_recorded_run_is_valid(run: str) -> None:
    against = load(RUNS / "ddp") if run == "zero3" else None
    assert not first_error("report", to_json(diagnose(load(RUNS / run), against)))


def test_a_check_and_a_baseline_are_valid() -> None:
    assert not first_error("check", to_json(CHECK))
    assert not first_error("baseline", to_json(BASELINE))


def test_a_report_of_another_version_is_not_valid() -> None:
    document = json.loads(to_json(rank_missing())) | {"schema": "zprof.report/2"}
    assert first_error("report", json.dumps(document)) == "$.schema: 'zprof.report/1' was expected"


def test_it_is_written_to_a_file_that_is_not_there_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "check.json"
    assert main(["schema", "check", "-o", str(target)]) == 0
    assert json.loads(target.read_text()) == schema_of("check")
    assert main(["schema", "check", "-o", str(target)]) == 2
    assert main(["schema", "check", "-o", str(target), "--force"]) == 0
    assert f"{target}: exists; --force overwrites it" in capsys.readouterr().err


def test_another_document_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "verdict"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "report" in said


def test_it_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from zprof.cli import main; main(['schema', 'report']);"
        "print(sorted({'torch', 'pandas', 'numpy', 'pyarrow'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
