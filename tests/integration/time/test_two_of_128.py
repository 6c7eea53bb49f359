"""What two of 128 ranks can prove, and what they cannot: a public pair of sampled traces."""

import shutil
from pathlib import Path

import pytest

from tests.support.real_traces import TRACES
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.report import VerdictStatus
from zprof.run.reader import load

FOLDER = TRACES / "hta_trace_filter_2of128"


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not there")
def test_exposed_time_is_known_and_its_split_is_a_bound(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "traces")
    import_paths([tmp_path / "traces"], tmp_path / "two.zprof")
    report = diagnose(load(tmp_path / "two.zprof"))
    time = report.time
    assert (report.run.ranks_loaded, report.run.world_size) == ((0, 1), 128)
    assert all(rank.collective_ns > rank.overlapped_ns > 0 for rank in time.per_rank)
    assert {entry.kind for entry in time.collectives} == {"all_to_all", "all_gather", "all_reduce"}
    for rank in time.per_rank:
        assert rank.unsplit_ns == rank.exposed_wait_ns + rank.exposed_transfer_ns
    assert all(entry.bound and entry.busbw_bytes_per_s is None for entry in time.collectives)
    assert time.blame is not None
    assert sum(entry.exposed_wait_ns for entry in time.blame.per_rank) == 0
    # One rank proves it by itself. Its gather behind the optimizer is exposed too, but hiding it may save
    # nothing: the replayed host is late for the next forward anyway.
    sure = {finding.cause for finding in report.findings if finding.confidence is not Confidence.LOW}
    assert (sure, report.verdict.status) == ({"cpu_bound_launch"}, VerdictStatus.RISK)
    gaps = {gap.what for gap in report.gaps}
    assert {"ranks missing", "matching of collectives", "exposed wait", "clock alignment"} <= gaps
