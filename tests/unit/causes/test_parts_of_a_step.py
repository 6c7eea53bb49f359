"""The verdict says what a training step on several ranks has and the recording has not."""

from pathlib import Path

import pytest

from tests.support.trace_folders import trace_document, write_trace
from zprof.analysis.analysis import analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.gaps import GapKind
from zprof.model.report import Report
from zprof.run.reader import load


def diagnose_trace(folder: Path, *, operators: tuple[str, ...], communicates: bool) -> Report:
    """One rank's trace of steps with these operators of the host."""
    document = trace_document(0, 1)
    events = [each for each in document["traceEvents"] if communicates or "nccl" not in each["name"]]
    calls = [each for each in events if each["cat"] == "cuda_runtime"]
    events += [each | {"cat": "cpu_op", "name": name} for each in calls for name in operators]
    write_trace(folder / "rank0.json", document | {"traceEvents": events})
    import_paths([folder / "rank0.json"], folder / "run.zprof")
    return diagnose(analyse_time_only(load(folder / "run.zprof")))


@pytest.mark.parametrize("trains", [True, False])
def test_a_trace_without_a_backward_is_named_as_such(tmp_path: Path, trains: bool) -> None:
    backward = ("autograd::engine::evaluate_function: MmBackward0",) if trains else ()
    report = diagnose_trace(tmp_path, operators=("aten::mm", *backward), communicates=True)
    assert (GapKind.NO_BACKWARD in {gap.kind for gap in report.gaps}) != trains
    assert ("no backward" in report.verdict.sentence) != trains


@pytest.mark.parametrize("communicates", [True, False])
def test_a_trace_without_communication_is_named_as_such(tmp_path: Path, communicates: bool) -> None:
    report = diagnose_trace(tmp_path, operators=(), communicates=communicates)
    assert ("no collective" in report.verdict.sentence) != communicates
