"""Hostile and damaged snapshots through the real command: one line, code 2, no traceback, nothing run."""

import gzip
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile_pickles import code, good, opcodes, shapes, wrong_values
from tests.support.snapshots import write_snapshot
from zprof.cli import main
from zprof.collectors.snapshot.reader import read_snapshot


def import_file(path: Path) -> int:
    return main(["import", str(path), "-o", str(path.parent / "run.zprof"), "--force"])


def assert_refused(path: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    code = import_file(path)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.startswith(f"zprof: {path}: ")
    assert err.count("\n") == 1
    assert "; " in err, "no remedy"
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert word in err
    assert not (path.parent / "run.zprof").exists()


@pytest.mark.parametrize("name", code(""))
def test_nothing_is_ever_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = tmp_path / "proof"
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(code(f"touch {proof}")[name])
    assert_refused(path, capsys, "asks Python to load")
    assert not proof.exists()


@pytest.mark.parametrize("name", opcodes())
def test_an_opcode_bomb_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, word = opcodes()[name]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    assert_refused(path, capsys, word)


@pytest.mark.parametrize("name", shapes())
def test_a_wrong_shape_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value, word = shapes()[name]
    assert_refused(write_snapshot(tmp_path / "snapshot.pickle", value), capsys, word)


@pytest.mark.parametrize("name", ["size_negative", "addr_none", "pool_nested"])
def test_a_wrong_value_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, word = wrong_values()[name]
    snapshot = good()
    change(snapshot)
    assert_refused(write_snapshot(tmp_path / "snapshot.pickle", snapshot), capsys, word)


def truncated(path: Path) -> None:
    path.write_bytes(pickle.dumps(good(), protocol=4)[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def old_protocol(path: Path) -> None:
    path.write_bytes(pickle.dumps(good(), protocol=0))


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", "x")


def trace(path: Path) -> None:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}))


def packed_trace(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"traceEvents": []}'))


def cut_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(pickle.dumps(good()))[:-30])


def gzip_bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\x80\x04" + b"\x00" * 30_000_000))


def pipe(path: Path) -> None:
    os.mkfifo(path)


FILES: dict[Callable[[Path], None], str] = {
    truncated: "damaged pickle",
    empty: "neither a run nor",
    old_protocol: "neither a run nor",
    archive: "torch.save",
    trace: "no event with a duration",
    packed_trace: "no event with a duration",
    cut_gzip: "damaged gzip",
    gzip_bomb: "unpacks to more than",
    pipe: "no plain file",
}


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_a_file_of_another_kind_is_one_line(
    make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle"
    make(path)
    assert_refused(path, capsys, FILES[make])


EVIL = "\x1b[31mred\x1b]0;title\x07 [bold]markup[/bold] \u202eevil\u2066 \ud800 line\nbreak"


def evil_names() -> dict[str, Any]:
    snapshot = good()
    entry = snapshot["device_traces"][0][-1]
    entry |= {"user_metadata": EVIL, "compile_context": EVIL}
    entry["frames"] = [{"filename": EVIL, "line": 1, "name": EVIL}]
    snapshot["device_traces"][0].append(entry | {"action": EVIL})
    snapshot["external_annotations"] = [{"stage": "START", "name": EVIL, "device": 0, "time_us": 1}]
    return snapshot


def test_names_are_kept_as_data_and_shown_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", evil_names())
    kept = EVIL.replace("\ud800", "\\ud800")
    with read_snapshot(path) as read:
        assert read.tables["stack"]["function"].to_pylist()[-1] == kept
        assert kept in read.tables["block"]["tag"].to_pylist()
    main(["report", str(path)])
    out, err = capsys.readouterr()
    assert "kinds that this version does not know" in " ".join(out.split())
    for text in (out, err):
        assert not {"\x1b", "\x07", "\u202e", "\u2066", "\ud800"} & set(text)


def test_unknown_keys_may_hold_anything(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    circle: dict[str, Any] = {}
    circle["self"] = circle
    snapshot = good() | {"later": deep}
    snapshot["device_traces"][0][0]["later"] = circle
    with read_snapshot(write_snapshot(tmp_path / "snapshot.pickle", snapshot)) as read:
        assert read.tables["block"].num_rows == 2
