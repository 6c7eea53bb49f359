"""Traces, one file per rank, as a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import run_python
from tests.support.trace_folders import BASE_NS, trace_document, write_ranks, write_trace
from zprof.base.errors import BadInput
from zprof.cli import main
from zprof.collectors.read.imports import trace_tables
from zprof.collectors.read.imports.import_paths import Imported, import_paths
from zprof.collectors.read.imports.options import ImportOptions
from zprof.collectors.read.imports.trace_worker import RankFacts, TraceJob, import_trace
from zprof.model.gaps import Gap
from zprof.run.reader import Run, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t").mkdir()
    return tmp_path / "t"


def imported(folder: Path, workers: int = 0) -> tuple[Imported, Run]:
    made = import_paths([folder], folder.parent / "new/r.zprof", options=ImportOptions(workers=workers))
    return made, load(made.run)


def gaps(run: Run) -> dict[str, Gap]:
    return {gap.what: gap for gap in run.gaps()}


def test_a_folder_becomes_a_run(folder: Path) -> None:
    write_ranks(folder, 3)
    made, run = imported(folder, workers=2)
    assert [(file.rank, file.path.name) for file in made.files] == [(r, f"rank{r}.json") for r in range(3)]
    assert run.ranks == (0, 1, 2)
    facts = run.manifest
    assert (facts.source, facts.backend, facts.world_size) == ("trace", "nccl", 3)
    assert facts.device == "cuda (NVIDIA H100 80GB HBM3)"
    assert (facts.environment, facts.training.engine) == ({}, "unknown")
    assert run.rank_manifests[1].time_steps == (5, 6)
    assert set(run.rank_manifests[1].files) == {"events", "collectives", "mark"}
    assert made.notes == ()
    assert "ranks missing" not in gaps(run)
    marks = run.frame(0, "mark")
    assert marks["time_ns"].tolist() == [BASE_NS + 1000 * us for us in (1000, 2000, 2000, 3000)]
    assert marks["number"].tolist() == [5, 5, 6, 6]
    assert run.frame(2, "collectives")["end_ns"].tolist() == [BASE_NS + 1_700_500, BASE_NS + 2_700_500]
    assert sorted(os.listdir(made.run)) == ["manifest.json", "rank00000", "rank00001", "rank00002"]
    assert os.listdir(made.run.parent) == ["r.zprof"]
    for file in made.run.rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes(), "the traces' own metadata is not copied"


def test_ranks_without_a_file_are_one_gap(folder: Path) -> None:
    for rank in (0, 5):
        write_trace(folder / f"x{rank}.json", trace_document(rank, 128))
    _, run = imported(folder)
    assert (run.ranks, run.manifest.world_size) == ((0, 5), 128)
    assert "126 of 128" in gaps(run)["ranks missing"].reason
    assert gaps(run)["ranks missing"].rank is None


def test_a_guessed_rank_is_a_note_and_a_gap(folder: Path) -> None:
    for name in ("b.json", "a.json"):
        write_trace(folder / name, trace_document(rank=None))
    made, run = imported(folder)
    assert "a.json is rank 0, b.json is rank 1" in made.notes[0]
    assert gaps(run)["ranks of the files"].reason == made.notes[0]
    assert (run.manifest.world_size, "world size" in gaps(run)) == (2, True)


def test_the_world_is_as_large_as_its_highest_rank(folder: Path) -> None:
    write_trace(folder / "x.json", trace_document(7, 2))
    _, run = imported(folder)
    assert (run.manifest.world_size, "world size" in gaps(run)) == (8, True)


def test_one_rank_without_collectives_is_a_world_of_its_own(folder: Path) -> None:
    alone = trace_document(rank=None)
    alone["traceEvents"] = [event for event in alone["traceEvents"] if "AllReduce" not in event["name"]]
    write_trace(folder / "alone.json", alone)
    _, run = imported(folder)
    assert (run.manifest.world_size, "world size" in gaps(run)) == (1, False)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("second", "words"),
    [
        ((3, 8), r"a.json and .*b.json: both are from rank 3(?m:$)"),
        ((4, 16), r"with (8 and 16|16 and 8) ranks"),
    ],
)
def test_files_that_cannot_be_of_one_run_are_refused(
    second: tuple[int, int], words: str, workers: int, folder: Path
) -> None:
    write_trace(folder / "a.json", trace_document(3, 8))
    write_trace(folder / "b.json", trace_document(*second))
    with pytest.raises(BadInput, match=words):
        imported(folder, workers)
    assert not list((folder.parent / "new").iterdir())


def test_a_damaged_file_among_good_ones_is_a_gap(folder: Path) -> None:
    write_ranks(folder, 3)
    (folder / "rank1.json").write_text('{"schemaVersion": 1, "deviceProperties": []}')
    (folder / "rank0_old.json").write_text('{"traceEvents": 7}')
    made, run = imported(folder)
    assert run.ranks == (0, 2), "a damaged file does not take the rank of a good one"
    reasons = {gap.reason.partition(":")[0] for gap in run.gaps() if gap.what == "file not imported"}
    assert reasons == {"rank0_old.json", "rank1.json"}
    assert not any(str(folder) in gap.reason for gap in run.gaps())
    assert "rank1.json" in made.notes[-1]
    assert "ranks missing" in gaps(run)


def test_a_damaged_file_does_not_shift_the_ranks_of_the_others(folder: Path) -> None:
    for name in ("a.json", "b.json", "c.json"):
        write_trace(folder / name, trace_document(rank=None))
    (folder / "b.json").write_text('{"traceEvents": 7}')
    made, _ = imported(folder)
    assert [(file.rank, file.path.name) for file in made.files] == [(0, "a.json"), (2, "c.json")]


def test_only_damaged_files_are_refused(folder: Path) -> None:
    for rank in range(2):
        write_trace(folder / f"rank{rank}.json", {"traceEvents": []})
    with pytest.raises(BadInput, match=r"none of 2 .*rank0.json"):
        imported(folder)
    assert not list((folder.parent / "new").iterdir())


def facts_of(folder: Path, document: Any) -> RankFacts:
    path = write_trace(folder / "one.json", document)
    facts = import_trace(TraceJob(position=0, path=str(path), folder=str(folder / "file0"), bytes=1))
    assert isinstance(facts, RankFacts)
    return facts


def test_the_device_is_that_of_the_events(folder: Path) -> None:
    document = trace_document()
    document["deviceProperties"] = [{"name": "AMD Instinct MI300X"}] * 8
    assert facts_of(folder, document).device == "hip (AMD Instinct MI300X)"
    document["deviceProperties"] = [{"name": "NVIDIA H100"}, {"name": "NVIDIA A100"}]
    assert facts_of(folder, document).device == "cuda"  # it is unknown which of them
    document["deviceProperties"] = [{"name": "\x1b[2J" + "x" * 9000}]
    assert "\x1b" not in facts_of(folder, document).device
    assert len(facts_of(folder, document).device) < 100
    document["deviceProperties"] = []
    assert facts_of(folder, document).device == "cuda"
    for event in document["traceEvents"]:
        event["name"] = event["name"].replace("cudaLaunch", "hipLaunch")
    assert facts_of(folder, document).device == "hip"
    document["traceEvents"] = [e for e in document["traceEvents"] if e["cat"] == "user_annotation"]
    assert facts_of(folder, document).device == "cpu"


def test_facts_of_a_trace_are_bounded_and_printable(folder: Path) -> None:
    document = trace_document(distributed={"rank": 0, "world_size": 1, "backend": "\x1b[31m" + "x" * 9000})
    facts = facts_of(folder, document | {"host_name": "h" * 9000})
    assert "\x1b" not in facts.backend
    assert max(len(facts.backend), len(facts.host)) <= 120


def test_too_little_memory_is_bad_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(trace_tables, "read_trace", fill)
    with pytest.raises(BadInput, match="memory"):
        import_paths([write_trace(folder / "one.json", trace_document())], folder.parent / "r.zprof")


def test_the_command_imports_and_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t\x1b[31m [bold]x[/bold]"
    write_ranks(folder, 2)
    command = ["import", str(folder), "-o", str(tmp_path / "r.zprof")]
    assert main([*command, "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert (out, err.count("(2 ranks)")) == ("", 1)
    (folder / "rank0.json").write_text("{}")
    for refused in (
        command,
        ["import", str(folder / "rank0.json"), "-o", str(tmp_path / "s.zprof")],
        ["import", str(folder), "-o", str(tmp_path / "s.zprof"), "--executor", "ray://a:1"],
        ["import", str(folder), "-o", str(tmp_path / "s.zprof"), "--executor", "dask://a b:1"],
    ):
        assert main(refused) == 2
        err = capsys.readouterr().err
        assert (err.count("\n"), "\x1b" in err) == (1, False)


def test_importing_and_reporting_need_no_torch(folder: Path) -> None:
    write_ranks(folder, 2)
    run, report = folder.parent / "r.zprof", folder.parent / "r.json"
    code = (
        "import sys; from zprof.cli import main\n"
        f"assert main(['import', {str(folder)!r}, '-o', {str(run)!r}]) == 0\n"
        f"assert main(['report', {str(folder)!r}, '-o', {str(report)!r}]) == 0\n"
        "print(sorted({'torch', 'hta', 'textual', 'distributed'} & set(sys.modules)))"
    )
    assert run_python("-c", code).strip() == "[]"
    assert json.loads(report.read_text())["run"]["source"] == "trace"


def test_what_a_killed_import_left_is_removed_by_the_next(folder: Path, tmp_path: Path) -> None:
    code = (
        "import os, shutil, signal, sys; from pathlib import Path\n"
        "from zprof.collectors.read.imports.import_paths import import_paths\n"
        "shutil.move = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "import_paths([Path(sys.argv[1])], Path(sys.argv[2]))\n"
    )
    write_ranks(folder, 1)
    (out := tmp_path / "out").mkdir()
    subprocess.run([sys.executable, "-c", code, folder, out / "x.zprof"], check=False)
    assert len(list(out.iterdir())) == 2, "the import and its lock"
    import_paths([folder], out / "x.zprof")
    assert [path.name for path in out.iterdir()] == ["x.zprof"]
