"""``zprof import``, and snapshots wherever a run is taken."""

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hostile_pickles import good
from tests.support.real_traces import TRACES
from tests.support.snapshots import Allocator, snapshot_of, write_snapshot
from zprof.cli import main
from zprof.integrations.imports import cache as import_cache
from zprof.integrations.imports.import_paths import import_paths
from zprof.model.errors import BadInput
from zprof.run.reader import load

SHARED = TRACES.with_name("snapshots") / "mosaic_output.pickle"


def sized(blocks: int) -> dict[str, object]:
    """A snapshot of as many blocks."""
    allocator = Allocator()
    allocator.begin_history()
    for _ in range(blocks):
        allocator.alloc(1000)
    return snapshot_of(allocator)


@pytest.fixture
def user_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "zprof" / "imports"


def test_a_folder_becomes_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    write_snapshot(folder / "rank0.pickle", sized(3))
    (folder / "rank2.pickle.gz").write_bytes(gzip.compress(pickle.dumps(sized(5))))
    (folder / "notes.txt").write_text("ours")
    run = load(import_paths([folder], tmp_path / "new" / "r.zprof").run)
    assert run.ranks == (0, 2)
    assert (run.manifest.source, run.manifest.backend, run.manifest.device) == ("snapshot", "unknown", "cuda")
    assert [len(run.frame(rank, "block")) for rank in run.ranks] == [3, 5]
    assert [gap.what for gap in run.gaps()] == ["ranks missing"]
    assert "1 of 3 ranks" in run.gaps()[0].reason
    assert set(run.rank_manifests[0].files) == {"block", "segment", "stack", "mark"}


def test_a_run_is_replaced_only_by_force_and_only_by_a_whole_one(tmp_path: Path) -> None:
    path, run = write_snapshot(tmp_path / "a.pickle", sized(3)), tmp_path / "r.zprof"
    import_paths([path], run)
    with pytest.raises(BadInput, match="a run is there already"):
        import_paths([path], run)
    bad = write_snapshot(tmp_path / "b.pickle", [])
    with pytest.raises(BadInput, match="not dict"):
        import_paths([path, bad], run, force=True)
    assert len(load(run).frame(0, "block")) == 3
    write_snapshot(path, sized(7))
    import_paths([path], run, force=True)
    assert len(load(run).frame(0, "block")) == 7
    assert sorted(os.listdir(tmp_path)) == ["a.pickle", "b.pickle", "r.zprof"]


def test_a_run_that_was_not_there_is_not_left_half(tmp_path: Path) -> None:
    bad = write_snapshot(tmp_path / "rank1.pickle", [])
    good_one = write_snapshot(tmp_path / "rank0.pickle", good())
    with pytest.raises(BadInput):
        import_paths([good_one, bad], tmp_path / "r.zprof")
    assert sorted(os.listdir(tmp_path)) == ["rank0.pickle", "rank1.pickle"]


def test_a_folder_without_snapshots_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no Kineto trace and no CUDA memory snapshot in this folder"):
        import_paths([tmp_path], tmp_path / "r.zprof")


def report(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert main(["report", str(path), "-f", "json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out)["run"]["source"], err


def test_a_snapshot_is_taken_where_a_run_is_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], user_cache: Path
) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    source, err = report(path, capsys)
    assert "snapshot" in source or source
    assert "imported into" in err
    _, err = report(path, capsys)
    assert "imported before" in err
    write_snapshot(path, sized(9))
    _, err = report(path, capsys)
    assert "imported into" in err, "a file that has changed is imported anew"
    (run,) = user_cache.glob("*.zprof-cache/snapshot.zprof")
    assert len(load(run).frame(0, "block")) == 9
    assert os.listdir(tmp_path) == ["snapshot.pickle"]


def test_a_folder_of_snapshots_is_taken_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    write_snapshot(folder / "a.pickle", sized(1))
    write_snapshot(folder / "b.pickle", sized(2))
    _, err = report(folder, capsys)
    assert "so the order does" in err
    write_snapshot(folder / "c.pickle", sized(3))
    _, err = report(folder, capsys)
    assert "imported into" in err, "one more file makes another run"


def test_a_cache_that_is_a_link_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], user_cache: Path
) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    report(path, capsys)
    (cache,) = user_cache.glob("*.zprof-cache")
    cache.rename(tmp_path / "planted")
    cache.symlink_to(tmp_path / "planted")
    before = sorted((tmp_path / "planted").rglob("*"))
    _, err = report(path, capsys)
    assert "imported before" not in err
    assert cache.is_symlink()
    assert sorted((tmp_path / "planted").rglob("*")) == before, "nothing is written where it leads"


def test_a_damaged_cache_is_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], user_cache: Path
) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    report(path, capsys)
    (manifest,) = user_cache.glob("*.zprof-cache/snapshot.zprof/manifest.json")
    manifest.write_text("{")
    _, err = report(path, capsys)
    assert "imported into" in err


def test_another_conversion_makes_another_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    report(path, capsys)
    monkeypatch.setattr(import_cache, "_CONVERSION", 999)
    _, err = report(path, capsys)
    assert "imported into" in err


def test_importing_needs_no_torch(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "snapshot.pickle", good())
    code = (
        "import sys; from zprof.cli import main\n"
        f"assert main(['import', {str(path)!r}, '-o', {str(tmp_path / 'r.zprof')!r}]) == 0\n"
        "import zprof.collectors.snapshot.child\n"
        "print(sorted({'torch', 'pandas', 'hta', 'textual'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not there")
def test_a_file_of_another_writer_is_read(tmp_path: Path) -> None:
    """Mosaic's sample: random addresses, pools as lists, annotations, no free_requested."""
    run = load(import_paths([SHARED], tmp_path / "r.zprof").run)
    block, mark = run.frame(0, "block"), run.frame(0, "mark")
    assert len(block) == 520 + 17
    assert (block["allocated_ns"] <= block["freed_ns"].fillna(1 << 62)).all()
    assert set(block["pool"].dropna()) == {"0,0"}
    assert set(block["compile_context"].dropna()) >= {"context1", "context2"}
    assert set(mark["kind"]) <= {"annotation_begin", "annotation_end"}
    assert {gap.what for gap in run.gaps()} == {"allocator history", "blocks awaiting free"}
