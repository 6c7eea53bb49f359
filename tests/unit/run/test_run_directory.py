"""Writing and reading a run: what was written comes back, and what was damaged is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.reader import Run, load
from zprof.run.step_log import StepLine
from zprof.run.writer import RankWriter

BEYOND_DOUBLE_NS = 1_790_857_026_000_000_001
MARKS = {"time_ns": [BEYOND_DOUBLE_NS], "kind": ["step_begin"], "number": [3], "name": [""]}
COLLECTIVE = {
    "kind": ["all_gather"],
    "group": ["0,1"],
    "group_size": [2],
    "sequence": [0],
    "dtype": ["float32"],
    "bytes": [4096],
    "start_ns": [BEYOND_DOUBLE_NS],
    "end_ns": [BEYOND_DOUBLE_NS + 5],
    "launch_start_ns": [BEYOND_DOUBLE_NS - 1],
    "launch_end_ns": [None],
    "wait_start_ns": [None],
    "wait_end_ns": [None],
    "unit": [None],
    "stream": [None],
    "method": ["range"],
}


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


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    write(tmp_path, world_size=2)
    run = load(tmp_path)
    assert run.ranks == (0, 1)
    assert run.manifest.training.modelled == ("link",)
    assert run.rank_manifests[1].time_steps == (1,)
    assert [gap.rank for gap in run.gaps()] == [0, 1]
    assert run.last_step(0) == 1


def test_times_survive_to_the_nanosecond_and_unknown_stays_unknown(tmp_path: Path) -> None:
    write(tmp_path)
    frame = load(tmp_path).frame(0, "collectives")
    assert int(frame["start_ns"][0]) == BEYOND_DOUBLE_NS
    assert int(frame["launch_start_ns"][0]) == BEYOND_DOUBLE_NS - 1
    assert frame["wait_start_ns"][0] is pd.NA
    assert frame["kind"][0] == "all_gather"


def test_collectives_of_all_ranks_carry_their_rank(tmp_path: Path) -> None:
    write(tmp_path, world_size=2)
    assert sorted(load(tmp_path).collectives()["rank"]) == [0, 1]


def test_a_second_recording_leaves_nothing_of_a_larger_first(tmp_path: Path) -> None:
    write(tmp_path, world_size=4)
    write(tmp_path, world_size=2)
    assert sorted(p.name for p in tmp_path.glob("rank*")) == ["rank00000", "rank00001"]


def test_a_rank_that_never_finished_is_missing_with_its_last_step(tmp_path: Path) -> None:
    write(tmp_path, world_size=2)
    writer = RankWriter(tmp_path, 1, manifest(2))
    writer.step_done(StepLine(step=7, begin_ns=1, end_ns=2))
    run = load(tmp_path)
    assert run.ranks == (0,)
    (gap,) = [gap for gap in run.gaps() if gap.what == "rank missing"]
    assert gap.rank == 1
    assert "after step 7" in gap.reason


def test_a_rank_of_an_earlier_run_on_the_same_path_is_missing(tmp_path: Path) -> None:
    write(tmp_path, world_size=2)
    again = RankWriter(tmp_path, 0, replace(manifest(2), run_id="the second"))
    again.finish(memory_steps=[], time_steps=[], gaps=[], status="complete")
    run = load(tmp_path)
    assert run.ranks == (0,)
    (gap,) = run.gaps()
    assert (gap.what, gap.rank, gap.reason) == ("rank missing", 1, "this rank wrote nothing")


def test_foreign_folders_are_refused_or_left_alone(tmp_path: Path) -> None:
    for name in ("rank00001", "rank00007"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").write_text("weights")
    RankWriter(tmp_path, 0, manifest(2))
    with pytest.raises(BadInput, match="not of a run"):
        RankWriter(tmp_path, 1, manifest(2))
    assert len(list(tmp_path.rglob("model.pt"))) == 2


def test_a_foreign_manifest_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": "of another"}')
    with pytest.raises(BadInput, match="not a zprof run"):
        RankWriter(tmp_path, 0, manifest())
    assert "of another" in (tmp_path / "manifest.json").read_text()


def test_a_rank_killed_after_a_window_is_loaded_and_named(tmp_path: Path) -> None:
    write(tmp_path, status="partial")
    run = load(tmp_path)
    assert run.ranks == (0,)
    assert "after step 1" in next(gap for gap in run.gaps() if gap.what == "rank cut short").reason


class Killed(Exception):
    """Stands for SIGKILL: nothing that the writer would do after it happens."""


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5])
def test_a_rank_killed_while_it_writes_again_keeps_the_last_tables_it_named(
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


def test_no_part_of_a_table_is_ever_seen(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0, manifest())
    with pytest.raises(Exception, match=r"link|int|convert"):
        writer.write_table("mark", MARKS | {"number": ["link"]})
    writer.finish(memory_steps=[], time_steps=[], gaps=[], status="complete")
    assert not load(tmp_path).has_table(0, "mark")


@pytest.mark.parametrize("keep", [0, 4, 100, -4])
def test_a_truncated_table_is_refused_in_one_line(tmp_path: Path, keep: int) -> None:
    write(tmp_path)
    path = tmp_path / "rank00000/mark.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInput) as error:
        load(tmp_path).frame(0, "mark")
    assert "\n" not in error.value.message
    assert "mark.parquet" in error.value.message
    assert error.value.hint


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    folder = tmp_path / "rank00000"
    (folder / "mark.parquet").write_bytes((folder / "collectives.parquet").read_bytes())
    record = json.loads((folder / "rank.json").read_text())
    record["files"]["mark"] = record["files"]["collectives"]
    (folder / "rank.json").write_text(json.dumps(record))
    with pytest.raises(BadInput, match="time_ns"):
        load(tmp_path).frame(0, "mark")


def edit(tmp_path: Path, **changes: object) -> Path:
    write(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return tmp_path


def test_a_newer_schema_says_upgrade(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"zprof.run/2") as error:
        Run(edit(tmp_path, schema="zprof.run/2"))
    assert "upgrade" in error.value.hint


def test_keys_of_a_newer_minor_version_are_no_error(tmp_path: Path) -> None:
    assert Run(edit(tmp_path, colour="blue")).ranks == (0,)


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": -1},
        {"world_size": 10**9},
        {"world_size": "many"},
        {"training": 5},
        {"training": {"x": 1}, "schema": 3},
        {"training": {"engine": None}},
        {"training": {"modelled": [1]}},
    ],
)
def test_impossible_manifests_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Run(edit(tmp_path, **changes))


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"nul"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    write(tmp_path)
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(BadInput):
        Run(tmp_path)


@pytest.mark.parametrize(
    "content", [b"{}", b"[]", b'{"files": 3}', b'{"files": {"mark": 1}, "gaps": [], "rank": 0}']
)
def test_a_damaged_rank_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    write(tmp_path)
    (tmp_path / "rank00000/rank.json").write_bytes(content)
    with pytest.raises(BadInput):
        Run(tmp_path).gaps()


@pytest.mark.parametrize("key", ["time_steps", "memory_steps", "gaps", "files", "rank"])
def test_a_rank_manifest_of_wrong_types_is_refused(tmp_path: Path, key: str) -> None:
    write(tmp_path)
    path = tmp_path / "rank00000/rank.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "x"}))
    with pytest.raises(BadInput, match="not a manifest of zprof"):
        Run(tmp_path).gaps()


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such run"):
        Run(tmp_path / "nowhere")
