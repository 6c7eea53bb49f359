"""Traces in the place of a run: imported once, and again when anything that they are has changed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.trace_folders import trace_document, write_ranks, write_trace
from zprof.integrations.imports import cache, traces
from zprof.integrations.imports.cache import import_cached
from zprof.integrations.imports.options import NoImportWatch
from zprof.model.errors import BadInput
from zprof.run.reader import load


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    write_ranks(tmp_path / "t", 1)
    return tmp_path / "t"


def opened(path: Path) -> tuple[Path, bool]:
    """The run, and whether it came from the cache."""
    notes: list[str] = []
    run = import_cached(path, notes.append, NoImportWatch())
    return run, "imported before" in notes[0]


def touched(folder: Path) -> None:
    status = (folder / "rank0.json").stat()
    os.utime(folder / "rank0.json", ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def resized(folder: Path) -> None:
    """Another size with the same time."""
    path = folder / "rank0.json"
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def one_more(folder: Path) -> None:
    write_trace(folder / "rank1.json", trace_document(1, 1))


def renamed(folder: Path) -> None:
    (folder / "rank0.json").rename(folder / "rank00.json")


CHANGES: list[Callable[[Path], None]] = [touched, resized, one_more, renamed]


@pytest.mark.parametrize("change", CHANGES)
def test_another_file_makes_another_run(change: Callable[[Path], None], folder: Path) -> None:
    assert opened(folder)[1] is False
    run, again = opened(folder)
    assert again is True
    assert run.name == "t.zprof"
    assert run.parent.parent == folder.parent / "home/zprof/imports"
    change(folder)
    assert opened(folder)[1] is False
    assert opened(folder)[1] is True


@pytest.mark.parametrize("part", ["__version__", "RUN_SCHEMA", "_CONVERSION"])
def test_another_zprof_makes_another_run(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(folder)
    monkeypatch.setattr(cache, part, "zprof.run/other")
    assert opened(folder)[1] is False


def test_another_place_makes_another_run(folder: Path) -> None:
    opened(folder)
    shutil.copytree(folder.parent, folder.parent / "moved", symlinks=True)
    assert opened(folder.parent / "moved/t")[1] is False


def test_nothing_is_written_beside_the_files(folder: Path) -> None:
    opened(folder)
    opened(folder / "rank0.json")
    assert os.listdir(folder) == ["rank0.json"]
    assert set(os.listdir(folder.parent)) == {"home", "t"}
    assert opened(folder)[1] is True


@pytest.mark.parametrize("place", ["a file is there", "no home"])
def test_without_a_cache_the_import_is_kept_while_the_command_runs(
    place: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    if place == "no home":
        monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/ignored")
        monkeypatch.setenv("HOME", "")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        (tmp_path / "home").write_text("")
    code = (
        "import sys; from pathlib import Path; from zprof.integrations.imports.cache import import_cached\n"
        "from zprof.integrations.imports.options import NoImportWatch\n"
        "from zprof.run.reader import load\n"
        "notes = []; run = import_cached(Path(sys.argv[1]), notes.append, NoImportWatch())\n"
        "assert load(run).ranks == (0,); assert 'while this command runs' in ' '.join(notes), notes\n"
        "assert run.is_relative_to(sys.argv[2]), run\n"
    )
    if place == "no home":
        code = "import os.path; os.path.expanduser = lambda path: path\n" + code
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[4])}
    subprocess.run([sys.executable, "-c", code, str(folder), str(temporary)], check=True, env=environment)
    assert not list(temporary.iterdir())


def test_what_a_killed_import_left_is_removed_by_the_next_one(folder: Path) -> None:
    """And what another import works in right now is not."""
    root = folder.parent / "home/zprof/imports"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from zprof.integrations.imports import cache\n"
        "from zprof.integrations.imports.options import NoImportWatch\n"
        "def work(*_):\n"
        "    print('there', flush=True); signal.pause()\n"
        "cache._import_into = work\n"
        "cache.import_cached(Path(sys.argv[1]), lambda note: None, NoImportWatch())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-c", code, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        (left,) = root.glob("*.zprof-cache.*")
        opened(folder)
        assert left.exists()
    finally:
        process.kill()
        process.communicate()
    touched(folder)
    opened(folder)
    assert not list(root.glob("*.zprof-cache.*"))


def test_a_reader_that_was_killed_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(folder / "rank1.json", trace_document(1, 1 + 1))
    write_trace(folder / "rank0.json", trace_document(0, 2))
    facts = traces._facts

    def killed(path: Path, *rest: object) -> object:
        return traces._KILLED if path.name == "rank1.json" else facts(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(traces, "_facts", killed)
        run, _ = opened(folder)
        assert load(run).ranks == (0,)
        assert "was killed" in next(g for g in load(run).gaps() if g.what == "file not imported").reason
    run, again = opened(folder)
    assert again is False
    assert load(run).ranks == (0, 1)


def test_a_damaged_file_is_not_tried_again(folder: Path) -> None:
    write_trace(folder / "rank1.json", {"traceEvents": []})
    opened(folder)
    assert opened(folder)[1] is True


def test_the_key_has_every_file(folder: Path) -> None:
    run, _ = opened(folder)
    key = json.loads((run.parent / "key.json").read_text())
    status = (folder / "rank0.json").stat()
    assert key["files"] == [["rank0.json", status.st_size, status.st_mtime_ns]]
    assert key["path"] == str(folder)


@pytest.mark.parametrize(("faster", "made"), [(2, True), (100, False)])
def test_another_process_may_put_its_cache_there_first(
    faster: int, made: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the moment when the old cache is gone and the one when the new one is put there."""
    rename, others = Path.rename, list(range(faster))

    def late(self: Path, target: Path) -> Path:
        if target.name.endswith(".zprof-cache") and others:
            others.pop()
            (target / "t.zprof").mkdir(parents=True)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    if not made:
        with pytest.raises(BadInput, match="cannot be written"):
            opened(folder)
    else:
        assert load(opened(folder)[0]).ranks
    assert not list((folder.parent / "home/zprof/imports").glob("*.zprof-cache.*"))


@pytest.mark.parametrize(
    ("file", "run"),
    [
        ("qwen_0.5b.pt.trace.json.gz", "qwen_0.5b.zprof"),
        ("rank0.JSON", "rank0.zprof"),
        ("snap.pickle", "snap.zprof"),
        ("a.b", "a.b.zprof"),
        (".json", "trace.zprof"),
    ],
)
def test_a_run_is_called_as_its_file_without_what_all_such_files_end_in(
    file: str, run: str, tmp_path: Path
) -> None:
    path = tmp_path / file
    kind = "trace"
    assert f"{cache._name_without_endings(path) or kind}.zprof" == run
