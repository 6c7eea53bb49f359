"""Hostile and damaged flight-recorder dumps: refused in a line or read without what is wrong; nothing runs,
and the files after them are read.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.flight_dumps import EVIL, list_refused, make_dump, make_entry, make_partial, make_refused
from zprof.cli import main
from zprof.collectors.read.flight_recorder.child import DumpAnswer
from zprof.collectors.read.flight_recorder.reader import DumpFile, read_dumps

Answers = Mapping[str, tuple[DumpAnswer, Path]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def answers(folder: Path) -> Answers:
    """All files, read by one process and its successors."""
    contents = make_refused(f"touch {folder / 'proof'}")
    contents |= {name: content for name, (content, _) in make_partial().items()}
    contents["good"] = pickle.dumps(make_dump(), protocol=2)
    files = []
    for name, content in contents.items():
        path = folder / name
        path.write_bytes(content)
        packed = content.startswith(b"\x1f\x8b")
        files.append(DumpFile(path=path, named_rank=None, folder=folder / f"{name}.tables", is_packed=packed))
    scratch = folder / "scratch"
    scratch.mkdir()
    return {file.path.name: (answer, file.folder) for file, answer in read_dumps(files, scratch, 1)}


@pytest.mark.parametrize("name", list_refused())
def test_a_hostile_file_is_refused_in_one_line(name: str, answers: Answers) -> None:
    answer, tables = answers[name]
    assert answer.error
    assert answer.hint
    assert answer.error.isprintable()
    assert len(answer.error) < 300
    assert not tables.exists()


@pytest.mark.parametrize("name", make_partial())
def test_what_is_wrong_is_left_out_with_a_gap(name: str, answers: Answers) -> None:
    answer, tables = answers[name]
    assert answer.error == ""
    assert answer.gaps
    assert all(gap.reason.isprintable() and len(gap.reason) < 400 for gap in answer.gaps)
    assert answer.files["flight"].rows == make_partial()[name][1]
    for table, file in answer.files.items():
        assert pq.read_metadata(tables / f"{table}.parquet").num_rows == file.rows


def test_nothing_is_executed_and_the_last_file_is_read(answers: Answers, folder: Path) -> None:
    assert not (folder / "proof").exists()
    answer, _ = answers["good"]
    assert (answer.error, answer.gaps, answer.files["flight"].rows) == ("", (), 3)


def test_names_are_kept_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = make_entry(0, (0, EVIL, EVIL), profiling_name=EVIL)
    entry["frames"] = [{"filename": EVIL, "line": 1, "name": EVIL}]
    path, run = tmp_path / "dump_0", tmp_path / "r.zprof"
    path.write_bytes(pickle.dumps(make_dump(entries=[entry]), protocol=2))
    assert main(["import", str(path), "-o", str(run)]) == 0
    kept = EVIL.replace("\ud800", "\\ud800")
    assert pq.read_table(run / "rank00000" / "flight.parquet")["group"].to_pylist() == [kept]
    capsys.readouterr()
    assert main(["report", str(run)]) in (0, 3)
    out, err = capsys.readouterr()
    assert "\x1b]0" not in out + err


@pytest.mark.parametrize("name", ["global", "truncated", "nested_key", "json_deep"])
def test_the_command_refuses_it_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dump_0"
    content = make_refused("false")[name]
    path.write_bytes(content)
    assert main(["report", str(path)]) == 2
    _, err = capsys.readouterr()
    assert "Traceback" not in err
    assert str(path) in err.splitlines()[-1]


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "node0_dump_1", tmp_path / "node1_dump_1"]
    for path in paths:
        path.write_bytes(pickle.dumps(make_dump(), protocol=2))
    assert main(["import", *map(str, paths), "-o", str(tmp_path / "r.zprof")]) == 2
    err = capsys.readouterr().err
    assert all(str(path) in err for path in paths)
    assert err.count("\n") == 1
