"""Raw files in place of a run: imported once, and again if anything of them has changed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.trace_folders import trace_document, write_ranks, write_trace
from zprof.collectors.read.imports import cache, traces
from zprof.collectors.read.imports.cache import ORIGIN_NAME, import_cached, read_origin, write_origin
from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.collectors.read.imports.options import ImportProgress
from zprof.run.reader import load

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[5])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    write_ranks(tmp_path / "t", 1)
    return tmp_path / "t"


def import_folder(path: Path) -> Path:
    return path.parent / "home/zprof/imports"


def open_cached(path: Path) -> tuple[Path, bool]:
    """Return the run, and whether it came from the cache."""
    before = {each: each.stat().st_ino for each in import_folder(path).glob("*.zprof-cache")}
    run = import_cached([path], lambda note: None, ImportProgress())
    return run, before.get(run.parent) == run.parent.stat().st_ino


def touch(folder: Path) -> None:
    status = (folder / "rank0.json").stat()
    os.utime(folder / "rank0.json", ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def resize(folder: Path) -> None:
    """Change the size and keep the time."""
    status = (path := folder / "rank0.json").stat()
    path.write_bytes(path.read_bytes() + b"\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def add_rank(folder: Path) -> None:
    write_trace(folder / "rank1.json", trace_document(1, 1))


def rename(folder: Path) -> None:
    (folder / "rank0.json").rename(folder / "rank00.json")


def damage_cache(folder: Path) -> None:
    next(import_folder(folder).glob("*.zprof-cache/*.zprof/manifest.json")).write_text("{")


@pytest.mark.parametrize("change", [touch, resize, add_rank, rename, damage_cache])
def test_a_change_makes_another_run(change: Callable[[Path], None], folder: Path) -> None:
    assert open_cached(folder)[1] is False
    run, again = open_cached(folder)
    assert again is True
    assert (run.name, run.parent.parent) == ("t.zprof", import_folder(folder))
    change(folder)
    assert open_cached(folder)[1] is False
    assert open_cached(folder)[1] is True
    assert set(os.listdir(folder.parent)) == {"home", "t"}, "nothing is written beside the files"


def test_another_version_makes_another_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_cached(folder)
    monkeypatch.setattr(cache, "__version__", "other")
    assert open_cached(folder)[1] is False


def test_a_cache_that_is_a_link_is_not_used(folder: Path, tmp_path: Path) -> None:
    cached = open_cached(folder)[0].parent
    cached.rename(tmp_path / "planted")
    cached.symlink_to(tmp_path / "planted")
    before = sorted((tmp_path / "planted").rglob("*"))
    run = import_cached([folder], lambda note: None, ImportProgress())
    assert cached not in run.parents
    assert cached.is_symlink()
    assert sorted((tmp_path / "planted").rglob("*")) == before, "nothing is written where it leads"


@pytest.mark.parametrize("cache_home", ["home", "relative/paths/are/ignored"])
def test_without_a_cache_the_import_is_kept_while_the_command_runs(
    cache_home: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file is in its place")
    (temporary := tmp_path / "tmp").mkdir()
    code = (
        "import os, sys; from pathlib import Path; os.path.expanduser = lambda path: path\n"
        "from zprof.collectors.read.imports.cache import import_cached\n"
        "from zprof.collectors.read.imports.import_paths import ImportProgress\n"
        "from zprof.run.reader import load\n"
        "run = import_cached([Path(sys.argv[1])], print, ImportProgress())\n"
        "assert load(run).ranks == (0,); assert run.is_relative_to(os.environ['TMPDIR']), run\n"
    )
    home = str(tmp_path / cache_home) if cache_home == "home" else cache_home
    environment = os.environ | ENVIRONMENT | {"TMPDIR": str(temporary), "XDG_CACHE_HOME": home}
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=environment)
    assert not list(temporary.iterdir())


def test_leftovers_of_a_killed_import_are_removed_and_work_in_progress_is_not(folder: Path) -> None:
    code = (
        "import signal, sys; from pathlib import Path\n"
        "from zprof.collectors.read.imports import cache\n"
        "from zprof.collectors.read.imports.import_paths import ImportProgress\n"
        "def work(*_, **__):\n"
        "    print('there', flush=True); signal.pause()\n"
        "cache.import_paths = work\n"
        "cache.import_cached([Path(sys.argv[1])], lambda note: None, ImportProgress())\n"
    )
    command, environment = [sys.executable, "-c", code, str(folder)], os.environ | ENVIRONMENT
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        (left,) = import_folder(folder).glob("*.zprof-cache.*")
        open_cached(folder)
        process.kill()
        assert left.exists()
    touch(folder)
    open_cached(folder)
    assert not list(import_folder(folder).glob("*.zprof-cache.*"))


def test_a_killed_reader_is_tried_again_and_a_damaged_file_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trace(folder / "rank0.json", trace_document(0, 3))
    write_trace(folder / "rank1.json", trace_document(1, 3))
    write_trace(folder / "rank2.json", {"traceEvents": []})
    read = traces.import_trace

    def die(job: traces.TraceJob, *rest: object) -> object:
        if job.path.endswith("rank1.json"):
            raise traces.BrokenExecutor
        return read(job)

    with monkeypatch.context() as patch:
        patch.setattr(traces, "import_trace", die)
        assert load(open_cached(folder)[0]).ranks == (0,)
    run, again = open_cached(folder)
    assert (again, load(run).ranks) == (False, (0, 1))
    assert open_cached(folder)[1] is True


def test_what_was_opened_stays_and_an_import_that_another_process_finished_first_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_files, first = cache.import_paths, []

    def late(*arguments: object, **options: object) -> object:
        imported = import_files(*arguments, **options)  # type: ignore[arg-type]
        if not first:
            first.append(None)
            first.append(open_cached(folder)[0])
        return imported

    monkeypatch.setattr(cache, "import_paths", late)
    assert open_cached(folder)[0] == first[1]
    touch(folder)
    assert open_cached(folder)[0] != first[1]
    assert load(first[1]).table(0, "events").num_rows


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_commands_at_once_have_the_same_answer(processes: int, folder: Path, tmp_path: Path) -> None:
    write_ranks(folder, 2)
    answers = set()
    for round_number in range(10 if processes > 2 else 2):
        environment = os.environ | ENVIRONMENT | {"XDG_CACHE_HOME": str(tmp_path / f"home{round_number}")}
        command = [sys.executable, "-m", "zprof", "report", str(folder), "-f", "json"]
        started = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(processes)
        ]
        for process in started:
            out, err = process.communicate()
            assert process.returncode == 0, err
            answers.add(out)
    assert len(answers) == 1


def remove_a_rank(run: Path) -> None:
    shutil.rmtree(run / "rank00001")


def flip_a_byte(run: Path) -> None:
    """Change the content, and neither size nor time."""
    path = run / "rank00000/events.parquet"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def grow_without_end(run: Path) -> None:
    os.truncate(run / "rank00000/events.parquet", 1 << 40)


def put_a_pipe_there(run: Path) -> None:
    (run / "rank00000/rank.json").unlink()
    os.mkfifo(run / "rank00000/rank.json")


@pytest.mark.parametrize("damage", [remove_a_rank, flip_a_byte, grow_without_end, put_a_pipe_there])
def test_a_damaged_import_is_made_again_with_a_note(damage: Callable[[Path], None], folder: Path) -> None:
    write_ranks(folder, 2)
    damage(open_cached(folder)[0])
    notes: list[str] = []
    run = load(import_cached([folder], notes.append, ImportProgress()))
    assert any("damaged" in note for note in notes)
    assert run.ranks == (0, 1)
    assert all(run.table(rank, "events").num_rows for rank in run.ranks)
    assert open_cached(folder) == (run.path, True)


def test_a_lock_that_another_process_holds_blocks_nobody(folder: Path) -> None:
    """As a suspended process does, or one on another machine."""
    entry = import_folder(folder) / "0.zprof-cache.x"
    entry.mkdir(parents=True)
    code = (
        "import fcntl, sys; files = [open(path, 'ab') for path in sys.argv[1:]]\n"
        "for file in files: fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(entry / "lock"), str(entry.parent / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        done = subprocess.run(
            [sys.executable, "-m", "zprof", "report", str(folder)],
            env=os.environ | ENVIRONMENT,
            timeout=120,
            capture_output=True,
            check=False,
        )
        process.communicate(b"\n")
    assert done.returncode == 0, done.stderr
    assert entry.exists()


def test_no_command_takes_long_to_remove_what_others_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = import_folder(folder) / "0.zprof-cache.x"
    old.mkdir(parents=True)
    for number in range(10):
        (old / str(number)).touch()
    (old / "lock").touch()
    monkeypatch.setattr(cache, "MAX_CLEANUP_S", 0.0)
    open_cached(folder)
    assert len(list(old.iterdir())) == 11
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "home"))
    touch(folder)
    open_cached(folder)
    assert not old.exists()


def test_a_run_has_the_name_of_its_file_without_endings(folder: Path) -> None:
    names = {"qwen_0.5b.pt.trace.json.gz": "qwen_0.5b", "a.JSON": "a", "a.b": "a.b", ".json": "trace"}
    for file, run in names.items():
        (folder / file).write_bytes((folder / "rank0.json").read_bytes())
        assert import_cached([folder / file], print, ImportProgress()).name == f"{run}.zprof"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A cached run that was made of the files of two ranks."""
    run = tmp_path / ".traces.zprof-cache" / "traces.zprof"
    run.mkdir(parents=True)
    files = [RankedFile(rank=rank, path=tmp_path / f"r\udcff {rank}.json") for rank in (0, 7)]
    write_origin(run.parent, files)
    return run


def test_a_cached_run_knows_its_files_and_another_does_not(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_origin(origin) == {rank: tmp_path / f"r\udcff {rank}.json" for rank in (0, 7)}
    assert not list(origin.iterdir()), "the run itself names no path"
    (plain := tmp_path / "plain/run.zprof").mkdir(parents=True)
    (plain.parent / ORIGIN_NAME).write_bytes((origin.parent / ORIGIN_NAME).read_bytes())
    assert read_origin(plain) is None
    assert read_origin(tmp_path / "nowhere" / "run.zprof") is None
    monkeypatch.setattr(os, "geteuid", lambda: origin.stat().st_uid + 1)
    assert read_origin(origin) is None


@pytest.mark.parametrize("content", [b"[]", b'{"a": "b"}', b'{"0": 3}', b"\xff\xfe", None])
def test_an_origin_that_is_damaged_or_a_link_is_ignored(origin: Path, content: bytes | None) -> None:
    path = origin.parent / ORIGIN_NAME
    if content is None:
        path.rename(path.with_name("other.json"))
        path.symlink_to(path.with_name("other.json"))
    else:
        path.write_bytes(content)
    assert read_origin(origin) is None
