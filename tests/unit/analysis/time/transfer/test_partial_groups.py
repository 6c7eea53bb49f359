"""One rank of several: what its collectives bound, and which rank's trace is asked for."""

import shutil

import pytest

import zprof
from zprof.cli import main
from zprof.model.machines import MACHINES


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two pipeline stages of two data ranks: rank 0 is in groups 0,1 (shards) and 0,2 (stages)."""
    folder = tmp_path_factory.mktemp("job") / "traces"
    assert main(["simulate", "-o", str(folder), "--parallel", "pp=2,dp=2", "--framework", "torch"]) == 0
    return folder


def test_a_lone_rank_bounds_the_link_from_below(job):
    whole, lone = zprof.load(job).report, zprof.load(job / "rank0.json.gz").report
    partial = lone.time.partial
    assert whole.time.partial is None
    assert partial.group == "0,2"
    assert (partial.next_ranks, partial.missing, partial.loaded, partial.group_size) == ((2,), 1, 1, 2)
    messages = [entry for entry in lone.time.collectives if entry.group == partial.group]
    assert partial.total_ns == sum(entry.total_ns for entry in messages)
    assert partial.exposed_ns <= partial.total_ns
    true = [
        entry.busbw_bytes_per_s
        for entry in whole.time.collectives
        if entry.group == partial.group and entry.kind in ("send", "recv")
    ]
    assert 0 < partial.least_bus_bytes_per_s < min(true)
    assert partial.is_within_node
    assert partial.usual_bus_bytes_per_s == MACHINES["h100"].intra_bytes_per_s
    assert partial.slowdown_factor == partial.usual_bus_bytes_per_s / partial.least_bus_bytes_per_s


def test_a_group_whose_ranks_are_all_loaded_is_whole(job, tmp_path):
    for name in ("rank0.json.gz", "rank2.json.gz"):
        shutil.copy(job / name, tmp_path / name)
    partial = zprof.load(tmp_path).report.time.partial
    assert (partial.group, partial.next_ranks) in (("0,1", (1,)), ("2,3", (3,)))
