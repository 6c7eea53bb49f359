"""Two real cases with injected faults: the faulty ranks, no other, and the collective they hold up."""

from pathlib import Path

import pytest

from tests.support.real_traces import DUMPS
from zprof.analysis.hang.find_hang import find_hang
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangClass
from zprof.run.reader import Run

EXPERTS = "EXPERT_MODEL_PARALLEL_GROUP"
pytestmark = pytest.mark.skipif(not DUMPS.is_dir(), reason="the dumps are not beside the checkout")


def judge_case(case: str, folder: Path) -> Hang:
    hang = find_hang(Run(import_paths([DUMPS / case], folder / "run.zprof").run))
    assert hang is not None
    return hang


@pytest.mark.parametrize(
    ("case", "kind", "culprits", "operation", "ranks"),
    [
        ("lock_gil_1st", HangClass.HOST_STUCK, (9, 14), ("all_to_all", 45265), tuple(range(8, 16))),
        ("gpu_error_1st", HangClass.DEVICE_STOPPED, (12, 14), ("all_to_all", 20530), (12, 13, 14, 15)),
    ],
)
def test_both_faulty_ranks_and_no_other(
    case: str,
    kind: HangClass,
    culprits: tuple[int, ...],
    operation: tuple[str, int],
    ranks: tuple[int, ...],
    tmp_path: Path,
) -> None:
    hang = judge_case(case, tmp_path)
    assert (hang.kind, hang.confidence) == (kind, Confidence.HIGH)
    assert tuple(culprit.rank for culprit in hang.culprits) == culprits
    assert set(hang.victims) == set(range(16)) - set(culprits)
    first = hang.operations[0]
    assert (first.operation, first.sequence) == operation
    assert (first.description, first.role, first.ranks) == (EXPERTS, "expert", ranks)
    assert "5120" in first.sizes
