"""Hostile and damaged snapshots: refused in a line, nothing run, and never a crash of the reader."""

import gzip
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from benchmarks.snapshot_truth.write_snapshot import write_snapshot
from tests.support.command_calls import run_python
from tests.support.hostile_pickles import code, good, opcodes, wrong_values
from zprof.base.errors import BadInput
from zprof.cli import main
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.collectors.read.snapshot.reader import read_snapshot

ROOT = Path(__file__).parents[5]

#: Reads attacks and random damage as the reader's child does, under its limits.
MANY = """
import io, pickle, random, sys
from tests.support.hostile_pickles import code, opcodes, shapes
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.snapshots import random_history
from zprof.collectors.read.pickle_sandbox import load_plain_data
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.collectors.read.snapshot.reader import compute_limits
from zprof.base.errors import BadInput
from zprof.process.sandbox import apply_limits

attacks = code("touch " + sys.argv[1]) | {name: content for name, (content, _) in opcodes().items()}
attacks |= {name: pickle.dumps(value, protocol=4) for name, (value, _) in shapes().items()}
del attacks["nested_key"]  # ends its process
sound = [pickle.dumps(snapshot_of(random_history(seed, 40)), protocol=2 + seed % 4) for seed in range(8)]
apply_limits(compute_limits(1 << 16))

def is_refused(content):
    try:
        convert_snapshot(load_plain_data(io.BytesIO(content)), max_rows=len(content))
    except BadInput as error:
        assert "\\n" not in error.message, error
    except MemoryError:
        pass
    else:
        return False
    return True

print([name for name, content in attacks.items() if not is_refused(content)])
chance, refused = random.Random(1), 0
for _ in range(400):
    content = bytearray(chance.choice(sound))
    for _ in range(chance.choice([1, 1, 2, 8])):
        content[chance.randrange(2, len(content))] = chance.randrange(256)
    refused += is_refused(bytes(content[: chance.choice([len(content), chance.randrange(2, len(content))])]))
print(refused)
"""


def test_attacks_are_refused_and_random_damage_is_read_or_refused(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    accepted, refused = run_python("-c", MANY, str(proof), cwd=ROOT).splitlines()
    assert accepted == "[]"
    assert not proof.exists()
    assert 20 < int(refused) < 390


@pytest.mark.parametrize("name", wrong_values())
def test_a_wrong_value_is_refused_by_name(name: str) -> None:
    change, word = wrong_values()[name]
    snapshot = good()
    assert convert_snapshot(snapshot).gaps == ()
    change(snapshot)
    with pytest.raises(BadInput) as error:
        convert_snapshot(snapshot)
    assert word.split()[0] in error.value.message
    assert "\n" not in error.value.message


def test_segments_that_overlap_are_refused() -> None:
    snapshot = good()
    first = snapshot["segments"][0]
    snapshot["segments"].append(first | {"address": first["address"] + 512, "blocks": []})
    with pytest.raises(BadInput):
        convert_snapshot(snapshot)


def in_a_zip(content: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return file.getvalue()


FILES = {
    "code": code("false")["as_a_name"],
    "more memory than allowed": opcodes()["ten_gigabytes"][0],
    "more stack than there is": opcodes()["nested_key"][0],
    "truncated": pickle.dumps(good(), protocol=4)[:-40],
    "empty": b"",
    "old protocol": pickle.dumps(good(), protocol=0),
    "archive": in_a_zip("x"),
    "trace": json.dumps({"schemaVersion": 1, "traceEvents": []}).encode(),
    "packed trace": gzip.compress(b'{"traceEvents": []}'),
    "cut gzip": gzip.compress(pickle.dumps(good()))[:-30],
    "gzip bomb": gzip.compress(pickle.dumps(good() | {"later": bytes(30_000_000)})),
    "pipe": None,
}


@pytest.mark.parametrize("name", FILES)
def test_the_command_refuses_a_bad_file_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = tmp_path / "snapshot.pickle", tmp_path / "run.zprof"
    content = FILES[name]
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    assert main(["import", str(path), "-o", str(run), "--force"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert str(path) in err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert not run.exists()


EVIL = "\x1b[31mred\x1b]0;title\x07 [bold]markup[/bold] \u202eevil\u2066 \ud800 line\nbreak"


def test_names_are_kept_as_data_and_escaped_in_gaps(tmp_path: Path) -> None:
    snapshot = good()
    entry = snapshot["device_traces"][0][-1]
    entry |= {"user_metadata": EVIL, "compile_context": EVIL}
    entry["frames"] = [{"filename": EVIL, "line": 1, "name": EVIL}]
    snapshot["device_traces"][0].append(entry | {"action": EVIL})
    snapshot["external_annotations"] = [{"stage": "START", "name": EVIL, "device": 0, "time_us": 1}]
    kept = EVIL.replace("\ud800", "\\ud800")
    with read_snapshot(write_snapshot(tmp_path / "snapshot.pickle", snapshot)) as read:
        assert read.tables["stack"]["function"].to_pylist()[-1] == kept
        assert kept in read.tables["block"]["tag"].to_pylist()
        assert read.gaps
        assert all(gap.reason.isprintable() for gap in read.gaps)
