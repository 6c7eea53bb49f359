"""Traces, one file a rank, as a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.trace_folders import BASE_NS, trace_document, write_ranks, write_trace
from zprof.cli import main
from zprof.integrations.imports import trace_worker
from zprof.integrations.imports.import_paths import Imported, import_paths
from zprof.integrations.imports.options import ImportOptions
from zprof.integrations.imports.trace_worker import RankFacts, TraceJob, import_trace
from zprof.integrations.imports.traces import ReadFile, ReadFiles
from zprof.model.errors import BadInput
from zprof.run.reader import Run, load


def imported(folder: Path, run: Path, workers: int = 0) -> tuple[Imported, Run]:
    made = import_paths([folder], run, options=ImportOptions(workers=workers))
    return made, load(made.run)


def whats(run: Run) -> list[str]:
    return [gap.what for gap in run.gaps()]


def test_a_folder_becomes_a_run(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 3)
    made, run = imported(tmp_path / "t", tmp_path / "new/r.zprof", workers=2)
    assert [(file.rank, file.path.name) for file in made.files] == [(r, f"rank{r}.json") for r in range(3)]
    assert run.ranks == (0, 1, 2)
    facts = run.manifest
    assert (facts.source, facts.backend, facts.device, facts.world_size) == ("trace", "nccl", "cuda", 3)
    assert (facts.environment, facts.training.engine) == ({}, "unknown")
    assert run.rank_manifests[1].time_steps == (5, 6)
    assert set(run.rank_manifests[1].files) == {"events", "collectives", "mark"}
    assert len(run.frame(2, "collectives")) == 2
    assert made.notes == ()
    assert "ranks missing" not in whats(run)
    assert sorted(os.listdir(made.run)) == ["manifest.json", "rank00000", "rank00001", "rank00002"]
    assert os.listdir(tmp_path / "new") == ["r.zprof"]


def test_nothing_of_a_traces_metadata_is_copied(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 1)
    made, _ = imported(tmp_path / "t", tmp_path / "r.zprof")
    for file in made.run.rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes()


def test_events_without_a_possible_time_are_a_gap_of_the_run(tmp_path: Path) -> None:
    document = trace_document(0)
    document["traceEvents"][-1]["dur"] = -(10**400)
    write_trace(tmp_path / "t/rank0.json", document)
    _, run = imported(tmp_path / "t", tmp_path / "r.zprof")
    (gap,) = [gap for gap in run.gaps() if gap.what == "trace file"]
    assert gap.reason.startswith(f"1 of {len(document['traceEvents'])} events")


def test_ranks_without_a_file_are_one_gap(tmp_path: Path) -> None:
    for rank in (0, 5):
        write_trace(tmp_path / f"t/x{rank}.json", trace_document(rank, 128))
    _, run = imported(tmp_path / "t", tmp_path / "r.zprof")
    assert run.ranks == (0, 5)
    assert run.manifest.world_size == 128
    (gap,) = [gap for gap in run.gaps() if gap.what == "ranks missing"]
    assert gap.reason == "no file of 126 of 128 ranks was given"
    assert gap.rank is None


def test_a_guessed_rank_is_a_note_and_a_gap(tmp_path: Path) -> None:
    for name in ("b.json", "a.json"):
        write_trace(tmp_path / "t" / name, trace_document(rank=None))
    made, run = imported(tmp_path / "t", tmp_path / "r.zprof")
    assert "so the order does: a.json is rank 0, b.json is rank 1" in made.notes[0]
    (gap,) = [gap for gap in run.gaps() if gap.what == "ranks of the files"]
    assert gap.reason == made.notes[0]
    assert gap.rank is None
    assert "no trace states how many ranks" in next(g for g in run.gaps() if g.what == "world size").reason


def test_one_rank_that_talks_to_nobody_is_not_asked_for_its_world(tmp_path: Path) -> None:
    alone = trace_document(rank=None)
    alone["traceEvents"] = [event for event in alone["traceEvents"] if "AllReduce" not in event["name"]]
    write_trace(tmp_path / "t/alone.json", alone)
    _, run = imported(tmp_path / "t", tmp_path / "r.zprof")
    assert run.manifest.world_size == 1
    assert "world size" not in whats(run)


def test_a_rank_beyond_the_world_widens_it(tmp_path: Path) -> None:
    write_trace(tmp_path / "t/x.json", trace_document(7, 2))
    _, run = imported(tmp_path / "t", tmp_path / "r.zprof")
    assert run.manifest.world_size == 8
    assert "state 2 ranks, but one of them is of rank 7" in run.gaps()[0].reason


@pytest.mark.parametrize("workers", [0, 2])
def test_two_files_of_one_rank_are_refused(workers: int, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write_trace(tmp_path / "t" / name, trace_document(3, 8))
    with pytest.raises(BadInput, match=r"a.json and .*b.json: both are of rank 3$"):
        imported(tmp_path / "t", tmp_path / "r.zprof", workers)
    assert os.listdir(tmp_path) == ["t"]


def test_two_files_of_one_rank_end_the_import_when_the_second_is_there() -> None:
    facts = RankFacts(
        version="", rank=3, world_size=None, backend="", device="cpu", host="", files={}, steps=(),
        collectives=0, gaps=(),
    )  # fmt: skip
    reads = ReadFiles()
    reads.add(ReadFile(position=1, path=Path("b"), folder=Path("x"), facts=facts))
    with pytest.raises(BadInput, match="a and b: both are of rank 3"):
        reads.add(ReadFile(position=0, path=Path("a"), folder=Path("x"), facts=facts))


def test_files_of_two_jobs_are_refused(tmp_path: Path) -> None:
    write_trace(tmp_path / "t/a.json", trace_document(0, 8))
    write_trace(tmp_path / "t/b.json", trace_document(1, 16))
    with pytest.raises(BadInput, match=r"of jobs of (8 and of 16|16 and of 8) ranks"):
        imported(tmp_path / "t", tmp_path / "r.zprof")


def test_a_damaged_file_among_good_ones_is_a_gap(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 3)
    (tmp_path / "t/rank1.json").write_text('{"schemaVersion": 1, "deviceProperties": []}')
    made, run = imported(tmp_path / "t", tmp_path / "r.zprof")
    assert run.ranks == (0, 2)
    (gap,) = [gap for gap in run.gaps() if gap.what == "file not imported"]
    assert gap.reason.startswith("rank1.json: ")
    assert str(tmp_path) not in gap.reason
    assert gap.remedy
    assert "rank1.json: left out: " in made.notes[-1]
    assert "ranks missing" in whats(run)


def test_a_damaged_file_does_not_shift_the_ranks_of_the_others(tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "c.json"):
        write_trace(tmp_path / "t" / name, trace_document(rank=None))
    (tmp_path / "t/b.json").write_text('{"traceEvents": 7}')
    made, _ = imported(tmp_path / "t", tmp_path / "r.zprof")
    assert [(file.rank, file.path.name) for file in made.files] == [(0, "a.json"), (2, "c.json")]


def test_a_damaged_file_does_not_take_the_rank_of_a_good_one(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 2)
    (tmp_path / "t/rank0_old.json").write_text('{"traceEvents": 7}')
    assert imported(tmp_path / "t", tmp_path / "r.zprof")[1].ranks == (0, 1)


def test_only_damaged_files_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"t/rank{rank}.json", {"traceEvents": []})
    with pytest.raises(BadInput, match=r"none of 2 files can be used; .*rank0.json: no event with"):
        imported(tmp_path / "t", tmp_path / "r.zprof")
    with pytest.raises(BadInput, match=r"^/.*rank0.json: no event with a duration"):
        import_paths([tmp_path / "t/rank0.json"], tmp_path / "r.zprof")
    assert os.listdir(tmp_path) == ["t"]


def facts_of(tmp_path: Path, document: Any) -> RankFacts:
    path = write_trace(tmp_path / "one.json", document)
    job = TraceJob(position=0, path=str(path), folder=str(tmp_path / "file0"), bytes=1)
    facts = import_trace(job)
    assert isinstance(facts, RankFacts)
    return facts


def test_the_device_is_that_of_the_events(tmp_path: Path) -> None:
    document = trace_document()
    assert facts_of(tmp_path, document).device == "cuda"
    document["deviceProperties"] = [{"name": "AMD Instinct MI300X"}]
    assert facts_of(tmp_path, document).device == "hip"
    document["deviceProperties"] = []
    assert facts_of(tmp_path, document).device == "cuda"
    for event in document["traceEvents"]:
        event["name"] = event["name"].replace("cudaLaunch", "hipLaunch")
    assert facts_of(tmp_path, document).device == "hip"
    document["traceEvents"] = [
        event for event in document["traceEvents"] if event["cat"] == "user_annotation"
    ]
    assert facts_of(tmp_path, document).device == "cpu"


def test_what_a_trace_says_is_bounded_and_printable(tmp_path: Path) -> None:
    document = trace_document(distributed={"rank": 0, "world_size": 1, "backend": "\x1b[31m" + "x" * 9000})
    document["host_name"] = "h" * 9000
    facts = facts_of(tmp_path, document)
    assert "\x1b" not in facts.backend
    assert len(facts.backend) <= 120
    assert len(facts.host) <= 120


def test_too_little_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(trace_worker, "read_trace", full)
    path = write_trace(tmp_path / "one.json", trace_document())
    with pytest.raises(BadInput, match="more memory than there is"):
        import_paths([path], tmp_path / "r.zprof")


def test_the_command_imports_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "t\x1b[31m [bold]x[/bold]"
    write_ranks(folder, 2)
    assert main(["import", str(folder), "-o", str(tmp_path / "r.zprof"), "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert (out, err.count("(2 ranks)")) == ("", 1)
    assert main(["import", str(folder), "-o", str(tmp_path / "r.zprof")]) == 2
    assert "a run is there already" in capsys.readouterr().err
    (folder / "rank0.json").write_text("{}")
    (folder / "rank1.json").unlink()
    assert main(["import", str(folder / "rank0.json"), "-o", str(tmp_path / "s.zprof")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--workers", "0"], "not a number from 1 to 1024"),
        (["--workers", "2", "--executor", "dask://a:1"], "not allowed with"),
        (["--executor", "ray://a:1"], "give dask://HOST:PORT"),
        (["--executor", "dask://a b:1"], "give dask://HOST:PORT"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ranks(tmp_path / "t", 2)
    assert main(["import", str(tmp_path / "t"), "-o", str(tmp_path / "r.zprof"), *arguments]) == 2
    assert word in capsys.readouterr().err


def test_importing_and_reporting_a_folder_need_no_torch(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 2)
    code = (
        "import sys; from zprof.cli import main\n"
        f"assert main(['import', {str(tmp_path / 't')!r}, '-o', {str(tmp_path / 'r.zprof')!r}]) == 0\n"
        f"assert main(['report', {str(tmp_path / 't')!r}, '-o', {str(tmp_path / 'r.json')!r}]) == 0\n"
        "print(sorted({'torch', 'hta', 'textual', 'distributed'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert json.loads((tmp_path / "r.json").read_text())["run"]["source"] == "trace"


def test_times_are_absolute(tmp_path: Path) -> None:
    write_ranks(tmp_path / "t", 1)
    _, run = imported(tmp_path / "t", tmp_path / "r.zprof")
    marks = run.frame(0, "mark")
    assert marks["time_ns"].tolist() == [BASE_NS + 1000 * us for us in (1000, 2000, 2000, 3000)]
    assert marks["number"].tolist() == [5, 5, 6, 6]
    assert run.frame(0, "collectives")["end_ns"].tolist() == [BASE_NS + 1_700_500, BASE_NS + 2_700_500]
