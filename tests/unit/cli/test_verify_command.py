"""``zprof verify``: exit codes, formats, and what it refuses; HTA itself is played."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hta_trace import hta_trace
from tests.support.schedules import Spec, play, write
from tests.support.snapshots import Allocator, snapshot_of, write_snapshot
from zprof.cli import main
from zprof.integrations.hta import verification
from zprof.integrations.hta.answers import Answers, read_answers, refused_answers


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(hta_trace()).encode()))
    return path


#: Of :func:`hta_trace`, counted by hand there.
FIGURES = {
    "rows": {"device": 6, "kept": 6, "resolution_ns": 1.0, "names": []},
    "overlap": {"percent": 25.0},
    "temporal": {"span_ns": 900_000, "idle_ns": 370_000, "compute_ns": 360_000, "non_compute_ns": 170_000},
    "kinds": {"communication_ns": 200_000, "memory_ns": 20_000},
}


@pytest.fixture
def hta(monkeypatch: pytest.MonkeyPatch) -> dict[int, Answers]:
    """What HTA will say, by rank; all that it is asked otherwise is refused."""
    told: dict[int, Answers] = {}

    def ask_all(files, questions, wall_s=None):
        assert all(path.is_file() for path in files.values())
        return {rank: told.get(rank, refused_answers(f"limit {wall_s}")) for rank in files}

    monkeypatch.setattr(verification, "ask_all", ask_all)
    return told


def said(**values) -> Answers:
    lines = [{"what": name, "value": value} for name, value in (FIGURES | values).items()]
    return read_answers([json.dumps(line).encode() for line in [*lines, {"what": "version", "value": "9.9"}]])


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_equal_figures_end_with_0(capsys, hta, trace):
    hta[0] = said()
    code, out, _ = outcome(capsys, "verify", trace)
    assert code == 0, out
    assert out.startswith("✓ Both agree")
    assert "HTA 9.9" in out
    assert max(map(len, out.splitlines())) <= 80


def test_other_figures_end_with_1_in_both_formats(capsys, hta, trace):
    hta[0] = said(overlap={"percent": 26.0})
    code, out, _ = outcome(capsys, "verify", trace)
    assert (code, "DIFFERS" in out) == (1, True)
    code, out, _ = outcome(capsys, "verify", trace, "-f", "json")
    tree = json.loads(out)
    assert (code, tree["schema"], tree["ranks"][0]["rank"]) == (1, "zprof.verify/1", 0)
    (overlap,) = [figure for figure in tree["ranks"][0]["figures"] if figure["name"] == "overlap"]
    assert (overlap["zprof"], overlap["other"], overlap["status"]) == (25.0, 26.0, "differs")


def test_an_hta_that_says_nothing_ends_with_3(capsys, hta, trace):
    code, out, _ = outcome(capsys, "verify", trace, "--hta-seconds", "7.5")
    assert (code, "limit 7.5" in out) == (3, True)
    assert out.startswith("? Nothing could be compared")


def test_ranks_are_chosen(capsys, hta, trace):
    trace.write_bytes(gzip.compress(json.dumps(hta_trace(rank=1)).encode()))
    hta[1] = said()
    code, out, _ = outcome(capsys, "verify", trace.parent, "--ranks", "0-1")
    assert (code, out) == (2, "")
    code, out, _ = outcome(capsys, "verify", trace.parent, "--ranks", "1")
    assert (code, "RANK 1" in out, "RANK 0" in out) == (0, True, False)


def test_a_run_has_no_trace(capsys, hta, tmp_path):
    spec = Spec(ranks=1, steps=1)
    run = write(tmp_path / "good.zprof", spec, play(spec))
    code, out, err = outcome(capsys, "verify", run)
    assert (code, out, len(err.splitlines())) == (3, "", 1)
    assert "trace" in err


def test_a_memory_snapshot_is_no_trace(capsys, hta, tmp_path):
    allocator = Allocator()
    allocator.alloc(1 << 20)
    snapshot = write_snapshot(tmp_path / "a.pickle", snapshot_of(allocator))
    code, out, err = outcome(capsys, "verify", snapshot)
    assert (code, out, "snapshot" in err) == (2, "", True)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b'{"a": 1}'])
def test_what_is_no_trace_is_refused_in_one_line(capsys, hta, tmp_path, content):
    path = tmp_path / "x\x1b.json"
    path.write_bytes(content)
    code, out, err = outcome(capsys, "verify", path)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "\x1b" not in err


@pytest.mark.parametrize(
    "command", [["--help"], ["verify", "--help"], ["export", "--help"], ["report", "--help"]]
)
def test_help_loads_neither_torch_nor_hta_nor_pandas(command):
    code = (
        "import sys; from zprof.cli import main; main(sys.argv[1:]);"
        "bad = {'torch', 'hta', 'pandas', 'numpy'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "verify" in done.stdout or "usage" in done.stdout
