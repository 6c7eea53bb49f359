"""Flight-recorder dumps as a run, and wherever a run is taken."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.flight_dumps import make_dump, make_entry, to_json
from tests.support.real_traces import TRACES
from zprof.cli import main
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.gaps import GapKind
from zprof.run.reader import Run, load

#: Subject of the gap for the ranks of which no file was given.
MISSING = "ranks missing"
REAL = TRACES.with_name("flight_recorder")


def import_run(tmp_path: Path, *paths: Path) -> Run:
    return load(import_paths(paths, tmp_path / "r.zprof").run)


def read_rows(run: Run, rank: int, table: str) -> list[dict[str, Any]]:
    return run.table(rank, table).to_pylist()


def ranks_with_gaps(run: Run) -> list[int | None]:
    """The ranks of the gaps about files, without those about ranks that left no dump."""
    return [gap.rank for gap in run.gaps() if gap.kind is GapKind.FILE and gap.what != MISSING]


def write_dumps(folder: Path, name: str, ranks: int, world: int = 4) -> None:
    for rank in range(ranks):
        dump = make_dump(ranks=range(world))
        dump["pg_config"]["7"] = {"name": "7", "desc": "pair", "ranks": str([rank, world + rank])}
        (folder / name.format(rank)).write_bytes(pickle.dumps(dump, protocol=2))


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data is not there")
@pytest.mark.parametrize("case", ["gpu_error_1st", "lock_gil_1st"])
def test_a_real_job_of_16_ranks_is_read(case: str, tmp_path: Path) -> None:
    run = import_run(tmp_path, REAL / case)
    facts = (run.manifest.world_size, run.manifest.backend, run.manifest.source)
    assert facts == (16, "nccl", "flight_recorder")
    assert list(run.ranks) == list(range(16))
    assert not ranks_with_gaps(run)
    for rank in run.ranks:
        groups = {row["group"]: row for row in read_rows(run, rank, "flight_group")}
        assert len(groups) >= 12
        assert all(str(rank) in row["ranks"].split(",") for row in groups.values())
        assert all(row["last_enqueued"] >= row["last_completed"] for row in groups.values())
        entries = read_rows(run, rank, "flight")
        # Sends and receives of one group complete in any order.
        collectives = [row for row in entries if not row["is_p2p"]]
        assert all(row["sequence"] > groups[row["group"]]["last_completed"] for row in collectives)
        assert all(row["group_id"] == groups[row["group"]]["group_id"] for row in entries)


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data is not there")
def test_the_locked_ranks_of_a_real_job_are_behind(tmp_path: Path) -> None:
    run = import_run(tmp_path, REAL / "lock_gil_1st")
    empty = [rank for rank in run.ranks if not read_rows(run, rank, "flight")]
    assert empty == [9, 14]
    tensor = {
        rank: next(row for row in read_rows(run, rank, "flight_group") if row["group"] == "37")
        for rank in (8, 9)
    }
    assert {rank: row["last_enqueued"] for rank, row in tensor.items()} == {8: 88688, 9: 88683}
    assert tensor[9]["ranks"] == "8,9,10,11"
    assert tensor[9]["description"] == "TENSOR_MODEL_PARALLEL_GROUP"


@pytest.mark.parametrize("name", ["_dump_{}", "nccl_trace_rank_{}", "rank{}.pkl", "trace_{}", "job7dump{}"])
def test_the_rank_is_in_the_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for rank in (3, 12):
        path = tmp_path / "d" / name.format(rank)
        path.write_bytes(pickle.dumps(make_dump(ranks=range(16)), protocol=2))
    (tmp_path / "d" / "fault_injection.log").write_text("Fault ranks: [9, 14]\n")
    run = import_run(tmp_path, tmp_path / "d")
    assert list(run.ranks) == [3, 12]
    assert run.manifest.world_size == 16
    assert not ranks_with_gaps(run)


def test_json_and_packed_dumps_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(make_dump()))
    (tmp_path / "rank1.gz").write_bytes(gzip.compress(pickle.dumps(make_dump(), protocol=4)))
    run = import_run(tmp_path, tmp_path / "rank0.json", tmp_path / "rank1.gz")
    assert [len(read_rows(run, rank, "flight")) for rank in run.ranks] == [3, 3]


def test_groups_decide_the_rank_if_they_leave_one(tmp_path: Path) -> None:
    groups = {"0": [0, 1, 2, 3], "1": [2, 3], "2": [0, 2]}
    config = {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in groups.items()}
    content = pickle.dumps(make_dump(pg_config=config, pg_status={}), protocol=2)
    (tmp_path / "dump_1").write_bytes(content)
    run = import_run(tmp_path, tmp_path / "dump_1")
    assert list(run.ranks) == [2]
    assert ranks_with_gaps(run) == [2]
    (tmp_path / "unnamed").write_bytes(content)
    assert list(load(import_paths([tmp_path / "unnamed"], tmp_path / "s.zprof").run).ranks) == [2]


def test_a_name_that_no_group_has_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "dump_9").write_bytes(pickle.dumps(make_dump(ranks=[0, 1]), protocol=2))
    run = import_run(tmp_path, tmp_path / "dump_9")
    assert list(run.ranks) == [9]
    assert ranks_with_gaps(run) == [9]


def test_a_damaged_dump_beside_others_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    write_dumps(tmp_path / "d", "dump_{}", 3)
    damaged = tmp_path / "d" / "dump_1"
    damaged.write_bytes(damaged.read_bytes()[:-50])
    run = import_run(tmp_path, tmp_path / "d")
    assert list(run.ranks) == [0, 2]
    assert any("dump_1" in gap.reason for gap in run.gaps())


def test_a_wrong_entry_is_a_gap_of_its_rank(tmp_path: Path) -> None:
    dump = make_dump(entries=[make_entry(0), make_entry(1, state="gone")])
    (tmp_path / "dump_1").write_bytes(pickle.dumps(dump, protocol=2))
    run = import_run(tmp_path, tmp_path / "dump_1")
    assert len(read_rows(run, 1, "flight")) == 1
    assert ranks_with_gaps(run) == [1]


@pytest.mark.parametrize("command", ["report", "diagnose"])
def test_dumps_are_taken_in_place_of_a_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d").mkdir()
    write_dumps(tmp_path / "d", "dump_{}", 2)
    for _ in range(2):  # the second time from the cache
        assert main([command, str(tmp_path / "d"), "-f", "json"]) in (0, 3)
        report = json.loads(capsys.readouterr().out)
        assert report["run"]["source"] == "flight_recorder"
        assert report["run"]["ranks_loaded"] == [0, 1]
        assert report["gaps"]
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["dump_0", "dump_1"]


def test_of_dumps_and_a_snapshot_in_a_folder_the_dumps_are_imported(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    write_dumps(tmp_path / "d", "dump_{}", 2)
    (tmp_path / "d" / "memory.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    imported = import_paths([tmp_path / "d"], tmp_path / "r.zprof")
    assert [file.rank for file in imported.files] == [0, 1]
    assert len(imported.notes) == 1
