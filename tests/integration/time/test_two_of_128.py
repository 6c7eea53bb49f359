"""What two of 128 ranks can prove, and what they cannot: the report of a public pair of sampled traces."""

import shutil

import pytest

from tests.support.real_traces import TRACES
from zprof.integrations.imports.import_paths import import_paths
from zprof.model.findings import Cause, Confidence
from zprof.model.report import Report, VerdictStatus
from zprof.reports.formats import by_name
from zprof.rules.diagnose import diagnose
from zprof.run.reader import load

FOLDER = TRACES / "hta_trace_filter_2of128"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not there")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(FOLDER, folder / "traces")
    import_paths([folder / "traces"], folder / "two.zprof")
    return diagnose(load(folder / "two.zprof"))


def test_what_they_prove_is_there(report: Report) -> None:
    """How much of each step is exposed, of which collectives, beside the whole ledger."""
    assert (report.run.ranks_loaded, report.run.world_size) == ((0, 1), 128)
    assert all(rank.collective_ns > rank.overlapped_ns > 0 for rank in report.time.per_rank)
    assert {entry.kind for entry in report.time.collectives} == {"all_to_all", "all_gather", "all_reduce"}


def test_what_they_do_not_prove_is_a_bound_or_a_gap(report: Report) -> None:
    exposed = [rank.exposed_wait_ns + rank.exposed_transfer_ns for rank in report.time.per_rank]
    assert [rank.unsplit_ns for rank in report.time.per_rank] == exposed
    assert all(entry.bound and entry.busbw_bytes_per_s is None for entry in report.time.collectives)
    assert report.time.blame is not None
    assert sum(entry.exposed_wait_ns for entry in report.time.blame.per_rank) == 0
    sure = {finding.cause for finding in report.findings if finding.confidence is not Confidence.LOW}
    # One rank proves it by itself.  Its gather behind the optimizer is exposed too, but hiding it may win
    # nothing: the replayed host is late for the next forward anyway.
    assert sure == {Cause.CPU_BOUND_LAUNCH}
    assert report.verdict.status is VerdictStatus.RISK
    said = {gap.what for gap in report.gaps}
    assert {"ranks missing", "matching of collectives", "exposed wait", "clock alignment"} <= said


def test_the_reader_is_told_both_at_once(report: Report) -> None:
    text = by_name("text").render(report)
    head = " ".join(text.split("\n\n")[0].split())
    assert "on 2 of 128 ranks" in head
    assert "waiting and moving bytes cannot be told apart" in head
    assert "exposed transfer  ≤ " in text
    assert "exposed wait        ≥ 0.0" in text
    assert "a late rank and a slow link look alike" in " ".join(text.split())
