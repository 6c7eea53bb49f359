"""Writing and reading a run: what was written comes back, and what was damaged is refused."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.gaps import Gap, GapKind
from zprof.model.training import TrainingFacts
from zprof.run.manifest import STEPS_NAME, RunManifest, StepLine
from zprof.run.reader import Run, load
from zprof.run.schema import TABLES
from zprof.run.writer import RankWriter

BEYOND_DOUBLE_NS = 1_790_857_026_000_000_001
MARKS = {"time_ns": [BEYOND_DOUBLE_NS], "kind": ["step_begin"], "number": [3], "name": [""]}
KNOWN = {
    "kind": "all_gather", "group": "0,1", "group_size": 2, "sequence": 0, "dtype": "float32", "bytes": 4096,
    "start_ns": BEYOND_DOUBLE_NS, "end_ns": BEYOND_DOUBLE_NS + 5, "launch_start_ns": BEYOND_DOUBLE_NS - 1,
    "method": "range",
}  # fmt: skip
COLLECTIVE = {name: [KNOWN.get(name)] for name in TABLES["collectives"].names}


def manifest(world_size: int = 1) -> RunManifest:
    training = TrainingFacts(engine="reference", stage=3, parameters=10, modelled=("link",))
    return RunManifest(
        zprof_version="0",
        created_ns=1,
        world_size=world_size,
        backend="gloo",
        device="cpu",
        training=training,
    )


def write(path: Path, *, world_size: int = 1, status: str = "complete") -> None:
    for rank in range(world_size):
        writer = RankWriter(path, rank, manifest(world_size))
        writer.step_done(StepLine(step=0, begin_ns=1, end_ns=2))
        writer.step_done(StepLine(step=1, begin_ns=2, end_ns=3))
        writer.write_table("mark", MARKS)
        writer.write_table("collectives", COLLECTIVE)
        gap = Gap(what="a", reason="b", remedy="c")
        writer.finish(memory_steps=[0], time_steps=[1], gaps=[gap], status=status)


def test_a_run_comes_back(tmp_path: Path) -> None:
    write(tmp_path, world_size=2)
    run = load(tmp_path)
    assert (run.ranks, run.last_step(0)) == ((0, 1), 1)
    assert run.manifest.training.modelled == ("link",)
    assert run.rank_manifests[1].time_steps == (1,)
    assert [gap.rank for gap in run.gaps()] == [0, 1]
    assert [len(run.frame(rank, "collectives")) for rank in run.ranks] == [1, 1]
    row = run.frame(0, "collectives").iloc[0]
    assert (int(row["start_ns"]), int(row["launch_start_ns"])) == (BEYOND_DOUBLE_NS, BEYOND_DOUBLE_NS - 1)
    assert row["wait_start_ns"] is pd.NA
    assert row["kind"] == "all_gather"


def test_a_second_recording_leaves_nothing_of_a_larger_first(tmp_path: Path) -> None:
    write(tmp_path, world_size=4)
    write(tmp_path, world_size=2)
    assert sorted(p.name for p in tmp_path.glob("rank*")) == ["rank00000", "rank00001"]


@pytest.mark.parametrize("again", [0, 1], ids=["rank 1 is of an earlier run", "rank 1 did not finish"])
def test_a_rank_that_did_not_write_this_run_is_missing(tmp_path: Path, again: int) -> None:
    write(tmp_path, world_size=2)
    run_id = {} if again else {"run_id": "the second"}
    writer = RankWriter(tmp_path, again, replace(manifest(2), **run_id))
    writer.step_done(StepLine(step=7, begin_ns=1, end_ns=2))
    if not again:
        writer.finish(memory_steps=[], time_steps=[], gaps=[], status="complete")
    run = load(tmp_path)
    assert run.ranks == (0,)
    (gap,) = [gap for gap in run.gaps() if gap.kind is GapKind.RANK_MISSING]
    assert gap.rank == 1
    assert ("step 7" in gap.reason) == bool(again)


class Killed(Exception):
    """Stands for SIGKILL: nothing that the writer would do after it happens."""


@pytest.mark.parametrize("moment", [1, 3, 4, 5])
def test_a_rank_killed_while_it_writes_again_keeps_whole_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Both tables are of before the kill, or both of after: at each rename of the second flush."""
    writer = RankWriter(tmp_path, 0, manifest())

    def flush(number: int, status: str) -> None:
        writer.write_table("mark", MARKS | {"number": [number]})
        writer.write_table("collectives", COLLECTIVE | {"sequence": [number]})
        writer.finish(memory_steps=[], time_steps=[number], gaps=[], status=status)

    flush(1, "partial")
    renames, rename = [], Path.rename

    def killed_at(self: Path, target: Path) -> Path:
        renames.append(target)
        if len(renames) == moment:
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed_at)
    with pytest.raises(Killed):
        flush(2, "complete")
    run = load(tmp_path)
    (step,) = run.rank_manifests[0].time_steps
    assert step == (1 if moment <= 3 else 2)
    assert list(run.frame(0, "mark")["number"]) == [step]
    assert list(run.frame(0, "collectives")["sequence"]) == [step]


def test_a_table_that_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0, manifest())
    with pytest.raises((pa.ArrowException, TypeError, ValueError)):
        writer.write_table("mark", MARKS | {"number": ["link"]})
    writer.finish(memory_steps=[], time_steps=[], gaps=[], status="complete")
    assert not load(tmp_path).has_table(0, "mark")


@pytest.mark.parametrize("keep", [0, 4, 100, -4])
def test_a_truncated_table_is_refused(tmp_path: Path, keep: int) -> None:
    write(tmp_path)
    path = tmp_path / "rank00000/mark.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInput, match=r"mark\.parquet") as error:
        load(tmp_path).frame(0, "mark")
    assert "\n" not in error.value.message
    assert error.value.hint


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    folder = tmp_path / "rank00000"
    (folder / "mark.parquet").write_bytes((folder / "collectives.parquet").read_bytes())
    files = json.loads((folder / "rank.json").read_text())["files"]
    edit(folder / "rank.json", files=files | {"mark": files["collectives"]})
    with pytest.raises(BadInput, match="time_ns"):
        load(tmp_path).frame(0, "mark")


def test_a_row_with_an_enormous_text_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Compressed it is a file of a few kilobytes."""
    write(tmp_path)
    path = tmp_path / "rank00000/mark.parquet"
    marks = load(tmp_path).table(0, "mark")
    text = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["a" * (70 << 20)]))
    pq.write_table(marks.set_column(3, marks.schema.field(3), text), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    files = json.loads(path.with_name("rank.json").read_text())["files"]
    files["mark"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(path.with_name("rank.json"), files=files)
    with pytest.raises(BadInput, match="mark"):
        load(tmp_path).table(0, "mark")


def test_schemas_of_other_versions(tmp_path: Path) -> None:
    write(tmp_path)
    edit(tmp_path / "manifest.json", colour="blue")
    assert Run(tmp_path).ranks == (0,)
    edit(tmp_path / "manifest.json", schema="zprof.run/2")
    with pytest.raises(BadInput, match=r"zprof.run/2"):
        Run(tmp_path)
    with pytest.raises(BadInput, match="nowhere"):
        Run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("manifest.json", {"world_size": -1}),
        ("manifest.json", {"world_size": 10**9}),
        ("manifest.json", {"world_size": "many"}),
        ("manifest.json", {"training": 5}),
        ("manifest.json", {"training": {"engine": None}}),
        ("manifest.json", {"training": {"modelled": [1]}}),
        ("rank00000/rank.json", {"time_steps": "x"}),
        ("rank00000/rank.json", {"gaps": "x"}),
        ("rank00000/rank.json", {"files": "x"}),
        ("rank00000/rank.json", {"files": {"mark": 1}}),
        ("rank00000/rank.json", {"rank": "x"}),
    ],
    ids=str,
)
def test_impossible_manifests_are_refused(tmp_path: Path, name: str, changes: dict[str, object]) -> None:
    write(tmp_path)
    edit(tmp_path / name, **changes)
    with pytest.raises(BadInput):
        Run(tmp_path).gaps()


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("manifest.json", {"world_size": 0}, "world_size"),
        ("manifest.json", {"created_ns": -1}, "created_ns"),
        ("manifest.json", {"planned": {"skip": 1, "memory": -2, "time": 3}}, r"planned\.memory"),
        ("manifest.json", {"training": {"parameters": -10}}, r"training\.parameters: -10 "),
        ("manifest.json", {"training": {"parameters": 10**400}}, r"training\.parameters"),
        ("manifest.json", {"training": {"stage": 4}}, r"training\.stage"),
        ("manifest.json", {"training": {"shard_ranks": 0}}, r"training\.shard_ranks"),
        ("manifest.json", {"training": {"replica_ranks": 0}}, r"training\.replica_ranks"),
        ("manifest.json", {"training": {"settings": [{"name": "n", "value": "v" * 5000}]}}, "setting: 5000"),
        (
            "manifest.json",
            {"training": {"settings": [{"name": "n", "value": "v"}] * 2000}},
            "settings: 2000",
        ),
        ("manifest.json", {"gaps": [{"what": "", "reason": "", "remedy": "", "rank": -1}]}, r"gaps\.rank"),
        ("rank00000/rank.json", {"rank": 1}, "rank: 1 "),
        ("rank00000/rank.json", {"time_steps": [3, 1 << 63]}, "time_steps"),
        ("rank00000/rank.json", {"files": {"mark": {"rows": -1, "sha256": ""}}}, r"files\.mark\.rows"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_impossible_numbers_are_named(
    tmp_path: Path, name: str, changes: dict[str, object], field: str
) -> None:
    write(tmp_path)
    edit(tmp_path / name, **changes)
    with pytest.raises(BadInput, match=f"{Path(name).name}: .*{field}") as raised:
        Run(tmp_path).gaps()
    assert len(raised.value.message) < 400


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[1]", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("name", ["manifest.json", "rank00000/rank.json"])
def test_damaged_manifests_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput):
        Run(tmp_path).gaps()


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "endless"]
)
def test_files_that_are_not_regular_are_never_read(tmp_path: Path, put: Callable[[Path], None]) -> None:
    for number, name in enumerate(["manifest.json", "rank00000/rank.json", "rank00000/mark.parquet"]):
        folder = tmp_path / str(number)
        write(folder)
        (folder / name).unlink()
        put(folder / name)
        with pytest.raises(BadInput, match=name):
            load(folder).table(0, "mark")
    write(tmp_path / "log")
    (tmp_path / "log/rank00000" / STEPS_NAME).unlink()
    put(tmp_path / "log/rank00000" / STEPS_NAME)
    assert load(tmp_path / "log").last_step(0) is None
