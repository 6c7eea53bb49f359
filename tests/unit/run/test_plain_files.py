"""A run from a stranger: what stands in the place of its files is refused, never waited for or read on."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_run_directory import write

from zprof.model.errors import BadInput
from zprof.run.plain_file import open_plain
from zprof.run.reader import load


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[pipe, endless])
def put(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    made: Callable[[Path], None] = request.param
    return made


@pytest.mark.parametrize("name", ["manifest.json", "rank00000/rank.json", "rank00000/mark.parquet"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, put: Callable[[Path], None]) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    put(tmp_path / name)
    with pytest.raises(BadInput, match=f"{name}: cannot be read.*no regular file"):
        load(tmp_path).table(0, "mark")


def test_a_log_of_steps_that_is_none_tells_no_step(tmp_path: Path, put: Callable[[Path], None]) -> None:
    write(tmp_path)
    (log,) = (path for path in (tmp_path / "rank00000").iterdir() if path.name.startswith("steps"))
    log.unlink()
    put(log)
    assert load(tmp_path).last_step(0) is None


def test_of_a_long_log_of_steps_the_end_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    (log,) = (path for path in (tmp_path / "rank00000").iterdir() if path.name.startswith("steps"))
    log.write_text("".join(f'{{"step": {step}}}\n' for step in range(20_000)))
    assert load(tmp_path).last_step(0) == 19_999


def test_a_link_to_a_regular_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with open_plain(tmp_path / "link") as file:
        assert file.read() == b"x"


def test_one_row_with_an_enormous_text_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Compressed it is a file of a few kilobytes."""
    write(tmp_path)
    path = tmp_path / "rank00000" / "mark.parquet"
    marks = load(tmp_path).table(0, "mark")
    text = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["a" * (70 << 20)]))
    pq.write_table(marks.set_column(3, marks.schema.field(3), text), path, compression="zstd")
    manifest = path.with_name("rank.json")
    tree = json.loads(manifest.read_text())
    tree["files"]["mark"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(tree))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(BadInput, match="unpacks to more than its rows can hold"):
        load(tmp_path).table(0, "mark")
