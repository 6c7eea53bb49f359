"""CUDA memory snapshots as a run, and wherever a run is taken."""

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of, write_snapshot
from tests.support.hostile_pickles import good
from tests.support.real_traces import TRACES
from zprof.base.errors import BadInput, MissingData
from zprof.cli import main
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.run.reader import load

SHARED = TRACES.with_name("snapshots") / "mosaic_output.pickle"


def sized(blocks: int) -> dict[str, object]:
    """Return a snapshot of as many blocks."""
    allocator = Allocator()
    allocator.begin_history()
    for _ in range(blocks):
        allocator.alloc(1000)
    return snapshot_of(allocator)


def test_a_folder_becomes_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    write_snapshot(folder / "rank0.pickle", sized(3))
    (folder / "rank2.pickle.gz").write_bytes(gzip.compress(pickle.dumps(sized(5))))
    (folder / "notes.txt").write_text("ours")
    run = load(import_paths([folder], tmp_path / "new" / "r.zprof").run)
    assert run.ranks == (0, 2)
    assert (run.manifest.source, run.manifest.backend, run.manifest.device) == ("snapshot", "unknown", "cuda")
    assert [len(run.frame(rank, "block")) for rank in run.ranks] == [3, 5]
    (gap,) = run.gaps()
    assert gap.what == "ranks missing"
    assert "1 of 3" in gap.reason
    assert set(run.rank_manifests[0].files) == {"block", "segment", "stack", "mark"}


def test_a_run_is_replaced_only_by_force_and_only_by_a_whole_one(tmp_path: Path) -> None:
    path, run = write_snapshot(tmp_path / "a.pickle", sized(3)), tmp_path / "r.zprof"
    bad = write_snapshot(tmp_path / "b.pickle", [])
    with pytest.raises(BadInput, match=r"b\.pickle"):
        import_paths([bad], run)
    assert not run.exists()
    import_paths([path], run)
    with pytest.raises(BadInput, match=r"r\.zprof"):
        import_paths([path], run)
    with pytest.raises(BadInput, match=r"b\.pickle"):
        import_paths([bad], run, force=True)
    assert len(load(run).frame(0, "block")) == 3
    import_paths([write_snapshot(path, sized(7))], run, force=True)
    assert len(load(run).frame(0, "block")) == 7
    assert sorted(os.listdir(tmp_path)) == ["a.pickle", "b.pickle", "r.zprof"]


def grown(mebibytes: int) -> dict[str, object]:
    """Return a snapshot of one block."""
    allocator = Allocator()
    allocator.begin_history()
    allocator.alloc(mebibytes * MIB)
    return snapshot_of(allocator)


def test_a_folder_of_ranks_is_compared_and_an_unreadable_one_is_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "iteration_10"
    folder.mkdir()
    for rank, size in enumerate((30, 50, 20, 40)):
        write_snapshot(folder / f"rank{rank}_memory_snapshot.pickle", grown(size))
    cut = folder / "rank3_memory_snapshot.pickle"
    cut.write_bytes(cut.read_bytes()[:-20])
    assert main(["report", str(folder), "-f", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["run"]["world_size"], report["run"]["ranks_loaded"]) == (4, [0, 1, 2])
    spread = report["memory"]["spread"]
    assert (spread["largest_rank"], spread["smallest_rank"]) == (1, 2)
    assert spread["difference_bytes"] == 30 * MIB
    changes = [group["b_bytes"] - group["a_bytes"] for group in spread["groups"]]
    assert changes == sorted(changes, reverse=True)
    assert sum(changes) == 30 * MIB
    (gap,) = [gap for gap in report["gaps"] if gap["what"] == "file not imported"]
    assert cut.name in gap["reason"]
    assert main(["diagnose", str(folder)]) == 0
    assert "rank 1" in capsys.readouterr().out
    first = folder / "rank0_memory_snapshot.pickle"
    assert [file.rank for file in import_paths([first, cut], tmp_path / "two.zprof").files] == [0]


def test_a_snapshot_without_blocks_is_missing_data_and_among_others_a_gap(tmp_path: Path) -> None:
    empty = write_snapshot(tmp_path / "rank0.pickle", sized(0))
    with pytest.raises(MissingData, match=r"rank0\.pickle"):
        import_paths([empty], tmp_path / "empty.zprof")
    other = write_snapshot(tmp_path / "rank1.pickle", sized(1))
    assert [file.rank for file in import_paths([empty, other], tmp_path / "two.zprof").files] == [1]


def test_two_iterations_are_not_mixed(tmp_path: Path) -> None:
    for iteration in (10, 20):
        for rank in range(2):
            write_snapshot(tmp_path / f"iteration_{iteration}_rank{rank}.pickle", sized(1))
    with pytest.raises(BadInput, match=r"iteration_10_rank0\.pickle and .*iteration_20_rank0\.pickle"):
        import_paths([tmp_path], tmp_path / "r.zprof")


def test_a_snapshot_is_taken_in_place_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    assert main(["report", str(path), "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["source"] == "snapshot"


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not there")
def test_a_file_of_another_writer_is_read(tmp_path: Path) -> None:
    """Mosaic's sample: random addresses, pools as lists, annotations, no free_requested."""
    run = load(import_paths([SHARED], tmp_path / "r.zprof").run)
    block = run.frame(0, "block")
    assert len(block) == 520 + 17
    assert (block["allocated_ns"] <= block["freed_ns"].fillna(1 << 62)).all()
    assert set(block["pool"].dropna()) == {"0,0"}
    assert set(run.frame(0, "mark")["kind"]) <= {"annotation_begin", "annotation_end"}
    assert {gap.what for gap in run.gaps()} == {"allocator history", "blocks awaiting free"}
