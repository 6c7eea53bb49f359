"""The real HTA beside zprof, on traces counted by hand."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.support.hta_trace import ROWS, hta_trace
from zprof.cli import main
from zprof.integrations.hta.verification import verify_with_hta
from zprof.model.report import FigureStatus, RankVerification, Verification

EQUAL, DIFFERS = FigureStatus.EQUAL, FigureStatus.DIFFERS
BY_HAND = {
    "overlap": 25.0,
    "kernel span": 900_000,
    "compute": 360_000,
    "non-compute": 170_000,
    "communication": 200_000,
    "memory": 20_000,
    "idle": 370_000,
}


def written(path: Path, content: object) -> Path:
    path.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode()))
    return path


def statuses(rank: RankVerification) -> dict[str, FigureStatus]:
    return {figure.name: figure.status for figure in rank.figures}


def only(found: Verification) -> RankVerification:
    (rank,) = found.ranks
    return rank


def test_both_say_what_was_counted_by_hand(tmp_path):
    """Compact JSON too, of which HTA's own search for ranks finds none."""
    found = verify_with_hta(written(tmp_path / "strange name $(x).json", hta_trace(rank=1)))
    rank = only(found)
    assert (found.source.split(" ")[0], found.gaps, rank.rank, rank.device_rows) == ("HTA", (), 1, ROWS)
    assert {figure.name: figure.zprof for figure in rank.figures} == pytest.approx(BY_HAND)
    assert {figure.name: figure.other for figure in rank.figures} == pytest.approx(BY_HAND, abs=1.0)
    assert set(statuses(rank).values()) == {EQUAL}


def test_a_wait_that_hta_takes_for_compute_is_named(tmp_path):
    found = verify_with_hta(written(tmp_path / "rank0.json.gz", hta_trace(sync=True)))
    rank = only(found)
    assert (found.status, statuses(rank)["compute"], statuses(rank)["communication"]) == (
        DIFFERS,
        DIFFERS,
        EQUAL,
    )
    (reason,) = rank.reasons
    assert "cuda_sync" in reason


def test_what_hta_cannot_parse_is_a_gap_with_its_words(tmp_path):
    cut = json.dumps(hta_trace()).encode()[:-40]
    (tmp_path / "rank0.json").write_bytes(cut)
    found = verify_with_hta(tmp_path / "rank0.json")
    assert found.status is FigureStatus.UNKNOWN
    assert {figure.zprof is None for figure in only(found).figures} == {False}
    (gap,) = [gap for gap in found.gaps if gap.what.startswith("HTA")]
    assert "JSONDecodeError" in gap.reason
    assert len(gap.reason.splitlines()) == 1


def test_the_report_has_hta_beside_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        written(folder / f"rank{rank}.json.gz", hta_trace(rank=rank))
    assert main(["report", str(folder), "--hta", "-f", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    opinion = tree["second_opinion"]
    assert [rank["rank"] for rank in opinion["per_rank"]] == [0, 1]
    for rank in opinion["per_rank"]:
        idle = {stream["stream"]: stream for stream in rank["idle"]}
        # By hand: the next work of stream 7 is always launched after the one before has ended, but the
        # copy and the kernel behind the all-reduce.
        assert set(idle) == {7, 20}
        waits = [idle[7][name] for name in ("host_wait_ns", "kernel_wait_ns", "other_ns")]
        assert sum(waits) == 900_000 - 360_000 - 20_000
        assert sum(rank["critical_path"]["shares"].values()) == pytest.approx(1.0)
    # The run in the cache names no path, and without its traces says so.
    run = next(tmp_path.glob("cache/zprof/imports/*.zprof-cache/*.zprof"))
    assert str(tmp_path).encode() not in b"".join(p.read_bytes() for p in run.rglob("*.json"))
    moved = shutil.copytree(run, tmp_path / "moved.zprof")
    assert main(["report", str(moved), "--hta", "-f", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["second_opinion"] is None
    assert any(gap["what"] == "HTA" for gap in tree["gaps"])
