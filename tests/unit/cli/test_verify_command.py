"""``zprof verify``: exit codes, formats, and what it refuses; HTA itself is played."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.write_snapshot import snapshot_of, write_snapshot
from tests.support.command_calls import Call
from tests.support.hta_trace import hta_trace
from zprof.integrations.hta import verification
from zprof.integrations.hta.process import HtaAnswers, make_refused_answers, read_answers


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
def hta(monkeypatch: pytest.MonkeyPatch) -> dict[int, HtaAnswers]:
    """What HTA will say, by rank; all that it is asked otherwise is refused."""
    told: dict[int, HtaAnswers] = {}

    def ask_all(files, questions, wall_s=None):
        assert all(path.is_file() for path in files.values())
        return {rank: told.get(rank, make_refused_answers(f"limit {wall_s}")) for rank in files}

    monkeypatch.setattr(verification, "ask_all", ask_all)
    return told


def said(**values: object) -> HtaAnswers:
    lines = [{"what": name, "value": value} for name, value in (FIGURES | values).items()]
    return read_answers([json.dumps(line).encode() for line in [*lines, {"what": "version", "value": "9.9"}]])


@pytest.mark.parametrize(
    ("percent", "code", "status"), [(25.0, 0, "equal"), (26.0, 1, "differs"), (None, 3, "unknown")]
)
def test_the_exit_code_says_if_figures_are_equal(
    call: Call, hta: dict, trace: Path, percent: float | None, code: int, status: str
) -> None:
    if percent is not None:
        hta[0] = said(overlap={"percent": percent})
    assert call("verify", trace)[0] == code
    got, out, _ = call("verify", trace, "-f", "json")
    tree = json.loads(out)
    assert (got, tree["schema"], tree["ranks"][0]["rank"]) == (code, "zprof.verify/1", 0)
    (overlap,) = [figure for figure in tree["ranks"][0]["figures"] if figure["name"] == "overlap"]
    assert (overlap["zprof"], overlap["other"], overlap["status"]) == (25.0, percent, status)


def test_ranks_are_chosen(call: Call, hta: dict, trace: Path) -> None:
    trace.write_bytes(gzip.compress(json.dumps(hta_trace(rank=1)).encode()))
    hta[1] = said()
    assert call("verify", trace.parent, "--ranks", "0-1")[:2] == (2, "")
    code, out, _ = call("verify", trace.parent, "--ranks", "1")
    assert (code, "RANK 1" in out, "RANK 0" in out) == (0, True, False)


def test_a_run_and_a_snapshot_have_no_trace(call: Call, hta: dict, tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(1 << 20)
    snapshot = write_snapshot(tmp_path / "a.pickle", snapshot_of(allocator))
    for path, wanted in (("RUNS/good.zprof", 3), (snapshot, 2)):
        code, out, err = call("verify", path)
        assert (code, out, len(err.splitlines())) == (wanted, "", 1)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b'{"a": 1}'])
def test_what_is_no_trace_is_refused_in_one_line(
    call: Call, hta: dict, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x\x1b.json"
    path.write_bytes(content)
    code, out, err = call("verify", path)
    assert (code, out, len(err.splitlines()), "\x1b" in err) == (2, "", 1, False)
