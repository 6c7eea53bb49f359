"""Damaged, hostile and incomplete runs through the real command: one line, code 2, no traceback."""

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.schedules import Spec, play, write
from zprof.cli import main


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(ranks=2, steps=4)
    return write(tmp_path_factory.mktemp("runs") / "good.zprof", spec, play(spec))


def no_such_run(run: Path) -> None:
    shutil.rmtree(run)


def not_a_run(run: Path) -> None:
    (run / "manifest.json").unlink()


def a_file(run: Path) -> None:
    shutil.rmtree(run)
    run.write_text("hello")


def truncated_table(run: Path) -> None:
    """Cut in half; the manifest's checksum is made to agree, so that Parquet itself must refuse."""
    table = run / "rank00001/events.parquet"
    content = table.read_bytes()[: table.stat().st_size // 2]
    table.write_bytes(content)
    path = run / "rank00001/rank.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["events"]["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(manifest))


def flipped_byte(run: Path) -> None:
    table = run / "rank00000/collectives.parquet"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(bytes(content))


def missing_table(run: Path) -> None:
    (run / "rank00000/events.parquet").unlink()


def newer_schema(run: Path) -> None:
    edit(run / "manifest.json", schema="zprof.run/2")


def hostile_schema(run: Path) -> None:
    edit(run / "manifest.json", schema="zprof.run/\x1b[2J\nOK")


def bad_json(run: Path) -> None:
    (run / "manifest.json").write_text('{"schema": "zprof.run/1", ')


def nested_json_bomb(run: Path) -> None:
    (run / "manifest.json").write_text("[" * 200_000)


def nested_rank_bomb(run: Path) -> None:
    (run / "rank00000/rank.json").write_text('{"a":' * 200_000)


def list_for_manifest(run: Path) -> None:
    (run / "manifest.json").write_text("[1, 2]")


def huge_world(run: Path) -> None:
    edit(run / "manifest.json", world_size=1 << 40)


def rank_manifest_of_wrong_types(run: Path) -> None:
    edit(run / "rank00000/rank.json", files=[1, 2])


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES: dict[Callable[[Path], None], str] = {
    no_such_run: "no such run",
    not_a_run: "manifest.json: no such file",
    a_file: "neither a run nor a Kineto trace",
    truncated_table: "cannot be read",
    flipped_byte: "checksum",
    missing_table: "cannot be read",
    newer_schema: "upgrade zprof",
    hostile_schema: "upgrade zprof",
    bad_json: "not a manifest of zprof",
    nested_json_bomb: "not a manifest of zprof",
    nested_rank_bomb: "not a manifest of zprof",
    list_for_manifest: "not a manifest of zprof",
    huge_world: "impossible world size",
    rank_manifest_of_wrong_types: "not a manifest of zprof",
}


def assert_one_line(code: int, out: str, err: str, words: str) -> None:
    assert code == 2, err
    assert out == ""
    assert err.startswith("zprof: ")
    assert err.count("\n") == 1
    assert "; " in err, "no remedy"
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert words in err


@pytest.mark.parametrize("side", ["run", "baseline"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_one_line_with_a_remedy(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], side: str
) -> None:
    bad = tmp_path / "bad.zprof"
    shutil.copytree(good, bad)
    damage(bad)
    arguments = [str(bad)] if side == "run" else [str(good), "--baseline", str(bad)]
    code = main(["report", *arguments])
    printed = capsys.readouterr()
    assert_one_line(code, printed.out, printed.err, DAMAGES[damage])


@pytest.mark.parametrize("damage", [truncated_table, newer_schema, nested_json_bomb])
def test_the_same_from_a_shell(good: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    bad = tmp_path / "bad.zprof"
    shutil.copytree(good, bad)
    damage(bad)
    done = subprocess.run(
        [sys.executable, "-m", "zprof", "report", str(bad)], capture_output=True, text=True, check=False
    )
    assert_one_line(done.returncode, done.stdout, done.stderr, DAMAGES[damage])


def test_a_missing_rank_is_no_error(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "killed.zprof"
    shutil.copytree(good, run)
    edit(run / "rank00001/rank.json", status="recording")
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 ranks (missing: 1)" in text
    assert "rank missing (rank 1)" in text
    assert "ZP301" not in text


def test_no_rank_at_all_is_missing_data(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "dead.zprof"
    shutil.copytree(good, run)
    for rank in range(2):
        shutil.rmtree(run / f"rank{rank:05d}")
    assert main(["report", str(run)]) == 3
    assert "no rank finished" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["diagnose", "report", "bundle"])
def test_a_name_that_no_file_can_have(command: str, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    assert main([command, long]) == 2
    assert main([command, str(good), "-o", f"{long}.txt"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("name another" in line for line in lines)


@pytest.mark.parametrize("has_steps", [True, False])
def test_a_trace_whose_host_runs_on_another_clock_is_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_steps: bool
) -> None:
    """No call of the host lies in a step of it, or in the step that all of the trace counts as."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["simulate", "-o", str(tmp_path / "traces"), "--ranks", "2", "--steps", "4"]) == 0
    document = json.loads(gzip.decompress((tmp_path / "traces" / "rank0.json.gz").read_bytes()))
    for event in document["traceEvents"]:
        if event.get("cat") == "cuda_runtime":
            event["ts"] = float(event["ts"]) - 1e7
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if has_steps or not event.get("name", "").startswith("ProfilerStep")
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(document))
    assert main(["diagnose", str(trace)]) == 0
    assert "internal error" not in capsys.readouterr().err
