"""Damaged, hostile and incomplete runs: one line with a remedy and exit code 2, or a gap."""

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_calls import Call


@pytest.fixture
def bad(runs: Path, tmp_path: Path) -> Path:
    """A copy of a good run, to be damaged."""
    return shutil.copytree(runs / "good.zprof", tmp_path / "bad.zprof")


def replaced_by_a_file(run: Path) -> None:
    shutil.rmtree(run)
    run.write_text("hello")


def truncated_table(run: Path) -> None:
    """Cut in half; the manifest's checksum is made to agree, so that Parquet itself must refuse."""
    table = run / "rank00001/events.parquet"
    content = table.read_bytes()[: table.stat().st_size // 2]
    table.write_bytes(content)
    files = json.loads((run / "rank00001/rank.json").read_text())["files"]
    files["events"]["sha256"] = hashlib.sha256(content).hexdigest()
    edit(run / "rank00001/rank.json", files=files)


def flipped_byte(run: Path) -> None:
    table = run / "rank00000/collectives.parquet"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(bytes(content))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


MANIFEST, RANK = "manifest.json", "rank00000/rank.json"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "no such run": shutil.rmtree,
    "no manifest": lambda run: (run / MANIFEST).unlink(),
    "a file": replaced_by_a_file,
    "truncated table": truncated_table,
    "flipped byte": flipped_byte,
    "missing table": lambda run: (run / "rank00000/events.parquet").unlink(),
    "newer schema": lambda run: edit(run / MANIFEST, schema="zprof.run/2"),
    "hostile schema": lambda run: edit(run / MANIFEST, schema="zprof.run/\x1b[2J\nOK"),
    "bad JSON": lambda run: (run / MANIFEST).write_text('{"schema": "zprof.run/1", '),
    "nested JSON": lambda run: (run / MANIFEST).write_text("[" * 200_000),
    "nested JSON of a rank": lambda run: (run / RANK).write_text('{"a":' * 200_000),
    "a list": lambda run: (run / MANIFEST).write_text("[1, 2]"),
    "huge world": lambda run: edit(run / MANIFEST, world_size=1 << 40),
    "wrong types": lambda run: edit(run / RANK, files=[1, 2]),
}


def assert_one_line(code: int, out: str, err: str) -> None:
    assert (code, out) == (2, ""), err
    assert err.startswith("zprof: ")
    assert "bad.zprof" in err
    assert "; " in err, "no remedy"
    assert err.count("\n") == 1
    assert err.removesuffix("\n").isprintable()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_line_with_a_remedy(call: Call, bad: Path, damage: str) -> None:
    DAMAGES[damage](bad)
    assert_one_line(*call("report", bad))
    assert_one_line(*call("report", "RUNS/good.zprof", "--baseline", bad))


def test_damage_from_a_shell(bad: Path) -> None:
    DAMAGES["nested JSON"](bad)
    command = [sys.executable, "-m", "zprof", "report", str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert_one_line(done.returncode, done.stdout, done.stderr)


def test_a_missing_rank_is_a_gap_and_no_rank_is_missing_data(call: Call, bad: Path) -> None:
    edit(bad / "rank00001/rank.json", status="recording")
    code, out, _ = call("report", bad, "-f", "json")
    tree = json.loads(out)
    assert (code, tree["run"]["ranks_loaded"]) == (0, [0])
    assert 1 in [gap["rank"] for gap in tree["gaps"]]
    assert "straggler_rank" not in [finding["cause"] for finding in tree["findings"]]
    shutil.rmtree(bad / "rank00000")
    assert call("report", bad)[0] == 3


@pytest.mark.parametrize("has_steps", [True, False])
def test_a_trace_whose_host_runs_on_another_clock_is_diagnosed(
    call: Call, tmp_path: Path, has_steps: bool
) -> None:
    """No call of the host lies in a step of it, or in the step that all of the trace counts as."""
    assert call("simulate", "-o", tmp_path / "traces", "--ranks", "2", "--steps", "4")[0] == 0
    document = json.loads(gzip.decompress((tmp_path / "traces" / "rank0.json.gz").read_bytes()))
    events = document["traceEvents"]
    for event in events:
        if event.get("cat") == "cuda_runtime":
            event["ts"] = float(event["ts"]) - 1e7
    kept = [event for event in events if has_steps or not event.get("name", "").startswith("ProfilerStep")]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(document | {"traceEvents": kept}))
    assert call("diagnose", trace)[0] == 0


@pytest.mark.parametrize("renamed", [1, 1_000_000])
def test_a_kind_of_a_newer_version_counts_as_other_with_a_gap(renamed: int, bad: Path, call: Call) -> None:
    """One row, or all; checksum and manifest agree."""
    path = bad / "rank00000/collectives.parquet"
    content = pq.read_table(path)
    index = content.schema.get_field_index("kind")
    kinds = content.column("kind").to_pylist()
    kinds[-renamed:] = ["all_to_some"] * len(kinds[-renamed:])
    pq.write_table(content.set_column(index, "kind", pa.array(kinds).dictionary_encode()), path)
    files = json.loads((bad / RANK).read_text())["files"]
    files["collectives"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(bad / RANK, files=files)
    code, out, _ = call("report", bad, "-f", "json")
    report = json.loads(out)
    assert code == 0
    assert any("all_to_some" in gap["reason"] and gap["rank"] == 0 for gap in report["gaps"])
    assert "other" in {row["kind"] for row in report["time"]["collectives"]}
