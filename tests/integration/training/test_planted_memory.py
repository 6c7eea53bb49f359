"""Memory that was planted in real ranks is the first finding, and what it frees is what the change frees."""

from pathlib import Path

import pytest

from zprof.cli import main
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.report import Report, VerdictStatus
from zprof.run.reader import load

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SHORT = ("--skip-steps", "1", "--memory-steps", "2", "--time-steps", "0")
#: The program of ``buffers_dominate`` without its plant.
HEALTHY = ("--stage", "3", "--layers", "4", "--hidden", "128", "--batch", "4")


def report(path: Path, *options: str) -> Report:
    assert main(["train", "-o", str(path), *SHORT, *options]) == 0
    return diagnose(load(path))


def peak_bytes(found: Report) -> int:
    return max(rank.peak_bytes for rank in found.memory.per_rank)


@pytest.mark.parametrize(
    ("cause", "least_ratio", "status"),
    [
        ("buffers_dominate", 0.5, VerdictStatus.RISK),
        ("activations_dominate", 0.3, VerdictStatus.RISK),
        ("logits_dominate", 0.5, VerdictStatus.RISK),
        ("replicated_state", 0.0, VerdictStatus.RISK),
        # a twelfth of a small peak
        ("retained_gradients", 0.0, VerdictStatus.OK),
    ],
)
def test_a_plant_is_the_first_finding(
    tmp_path: Path, cause: str, least_ratio: float, status: VerdictStatus
) -> None:
    found = report(tmp_path / "planted.zprof", "--plant", cause.value)
    first = found.findings[0]
    assert first.cause is cause
    assert first.confidence is not Confidence.LOW
    assert first.saving_bytes is not None
    low, high = first.saving_bytes
    assert least_ratio * peak_bytes(found) <= low <= high < peak_bytes(found)
    assert found.verdict.status is status


def test_the_saving_of_a_finding_is_what_its_change_frees(tmp_path: Path) -> None:
    found = report(tmp_path / "planted.zprof", "--plant", "buffers_dominate")
    healthy = report(tmp_path / "healthy.zprof", *HEALTHY)
    assert {entry.confidence for entry in healthy.findings} <= {Confidence.LOW}
    low, high = found.findings[0].saving_bytes
    assert low <= peak_bytes(found) - peak_bytes(healthy) <= high
