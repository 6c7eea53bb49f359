"""Reports that are kept: recalled for the same question about the same files, and for nothing else."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.schedules import Spec, play, write
from zprof.analysis.analysis import analyse
from zprof.cache.folder import MAX_BYTES, clear_cache, limit_cache, list_entries
from zprof.cache.reports import Question, answer, find_report_file
from zprof.diagnosis.diagnose import diagnose
from zprof.model.cache import CacheKind
from zprof.model.report import Report
from zprof.planner.whatif import add_outlook
from zprof.run.reader import Run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/zprof/reports"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    spec = Spec(ranks=2, steps=5)
    write(tmp_path / "job.zprof", spec, play(spec))
    return Run(tmp_path / "job.zprof")


def ask(run: Run, baseline: Run | None = None, **options: object) -> Question:
    return Question(command="report", run=run, baseline=baseline, options=options)


def refuse() -> Report:
    raise AssertionError("measured again")


def test_a_recalled_report_is_the_one_that_was_made(run: Run) -> None:
    analysis = analyse(run)
    made = answer(ask(run), lambda: add_outlook(diagnose(analysis), analysis))
    assert made.findings
    assert answer(ask(Run(run.path)), refuse) == made


def other_time(run: Run) -> Question:
    table = run.path / "rank00000/events.parquet"
    os.utime(table, ns=(1, table.stat().st_mtime_ns + 1))
    return ask(run)


def other_facts(run: Run) -> Question:
    return ask(run.described(replace(run.manifest.training, stage=2)))


OTHERS: dict[str, Callable[[Run], Question]] = {
    "a changed table": other_time,
    "stated facts": other_facts,
    "a baseline": lambda run: ask(run, run),
    "an option": lambda run: ask(run, policy="trace"),
    "a command": lambda run: Question(command="diagnose", run=run, options={}),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_question_has_another_answer(run: Run, change: Callable[[Run], Question]) -> None:
    first = find_report_file(ask(run))
    assert find_report_file(ask(run)) == first
    assert find_report_file(change(run)) != first


def write_other_type(path: Path) -> None:
    path.write_bytes(msgspec.msgpack.encode({"findings": 3}))


def link_to_other(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "nested": lambda path: path.write_bytes(b"\x91" * 100_000),
    "another type": write_other_type,
    "huge": lambda path: os.truncate(path, 1 << 40),
    "a link": link_to_other,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_measured_again(run: Run, damage: Callable[[Path], object]) -> None:
    made = answer(ask(run), lambda: diagnose(run))
    path = find_report_file(ask(run))
    assert path is not None
    damage(path)
    assert answer(ask(run), lambda: diagnose(run)) == made


def test_a_cache_that_cannot_be_written_costs_no_answer(
    run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    assert answer(ask(run), lambda: diagnose(run)) == diagnose(run)
    monkeypatch.setenv("ZPROF_NO_CACHE", "1")
    assert find_report_file(ask(run)) is None


def test_what_was_not_used_for_long_goes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    now = time.time()
    for name, hours in (("old", 9), ("older", 99), ("new", 0), ("used", 2)):
        (cache / f"{name}.report").write_bytes(b"x" * 100)
        os.utime(cache / f"{name}.report", (now, now - 3600 * hours))
    (cache / "mine.txt").write_bytes(b"x" * 10_000)
    monkeypatch.setitem(MAX_BYTES, CacheKind.REPORTS, 250)
    limit_cache(CacheKind.REPORTS)
    assert {path.stem for path in cache.glob("*.report")} == {"new", "used"}
    monkeypatch.setitem(MAX_BYTES, CacheKind.REPORTS, 0)
    limit_cache(CacheKind.REPORTS)
    assert {path.stem for path in cache.glob("*.report")} == {"new"}, "of the last hour: perhaps in use"
    assert [entry.bytes for entry in clear_cache(CacheKind.REPORTS)] == [100]
    assert not list_entries(CacheKind.REPORTS)
    assert (cache / "mine.txt").exists()


def test_what_a_killed_process_left_is_removed_and_work_in_progress_is_not(run: Run, cache: Path) -> None:
    cache.mkdir(parents=True)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f".a.report.{os.getpid()}.tmp", ".a.report.x.tmp", f".a.report.{1 << 70}.tmp"]
    for name in (f".a.report.{ended.pid}.tmp", *names):
        (cache / name).touch()
    answer(ask(run), lambda: diagnose(run))
    assert sorted(path.name for path in cache.glob(".*")) == sorted(names)
