"""HTA's child: what it said counts, however it ends, and nothing of it is left behind."""

import gzip
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from zprof.integrations.hta.process import HtaAnswers, HtaOverlap, ask_all, choose_limits, format_source_name
from zprof.process import sandbox

#: Programs in place of the child: argv is ROOT, JOB; the working folder is the child's own.
SAY = "import json, os, sys; job = json.loads(sys.argv[2]); out = open('answers.jsonl', 'w');"
OVERLAP = "print(json.dumps({'what': 'overlap', 'value': {'percent': 12.5}}), file=out, flush=True);"


def say_version(expression: str) -> str:
    return f"{SAY} print(json.dumps({{'what': 'version', 'value': {expression}}}), file=out)"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank 0; $(x)\n\x1b.json"
    path.write_text("{}")
    return path


def ask(path: Path, program: str) -> HtaAnswers:
    return ask_all({0: path}, ("overlap",), 60.0, program)[0]


def test_it_gets_a_link_whose_ending_is_what_the_file_is(tmp_path):
    (packed := tmp_path / "trace.json").write_bytes(gzip.compress(b'{"a": 1}'))
    (plain := tmp_path / "trace.gz").write_text('{"b": 1}')
    echo = say_version("job['path'][-10:] + open(job['path'], 'rb').read().hex()")
    assert ask(packed, echo).version == "ce.json.gz" + packed.read_bytes().hex()
    assert ask(plain, echo).version == "trace.json" + plain.read_bytes().hex()


def test_its_environment_turns_rounding_off_and_hides_the_home(trace):
    names = "('HTA_DISABLE_NS_ROUNDING', 'OPENBLAS_NUM_THREADS', 'HOME')"
    echo = say_version(f"' '.join(os.environ[name] for name in {names})")
    rounding, threads, home = (ask(trace, echo).version or "").split(" ", 2)
    assert (rounding, threads) == ("1", "1")
    assert home != os.environ.get("HOME")
    assert not Path(home).exists()


def test_when_its_time_is_over_it_ends_with_its_children_and_its_answers_count(trace, tmp_path, monkeypatch):
    seen = tmp_path / "seen"  # the child writes it when it hangs: from then on its time is over

    def monotonic() -> float:
        return 1e9 if seen.exists() and seen.read_text().endswith("!") else 0.0

    monkeypatch.setattr(sandbox, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    hang = "import subprocess, time;"
    hang += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    hang += f"open({str(seen)!r}, 'w').write(f'{{p.pid}}!'); time.sleep(600)"
    answers = ask(trace, SAY + OVERLAP + hang)
    assert answers.get("overlap", HtaOverlap) == HtaOverlap(percent=12.5)
    assert "60 s" in answers.error("temporal")
    wait_for_end(int(seen.read_text()[:-1]))


def wait_for_end(pid: int) -> None:
    """Fail if the process does not end; a kill takes effect when the busy machine next runs it."""
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return False if the process has ended; one whose parent has died is listed until init reaps it."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "memory"),
        ("raise SystemExit(7)", "7"),
        (SAY + "out.write('not json\\n{\"what\": 3}\\n[]\\n\\udcff')", ""),
        (SAY + "print(json.dumps({'what': 'overlap', 'value': {'percent': 'x'}}), file=out)", ""),
        (SAY + "print(json.dumps({'what': 'overlap', 'error': 'ValueError: no'}), file=out)", "ValueError"),
        (SAY + "print(json.dumps({'what': 'load', 'error': 'KeyError: 1'}), file=out)", "KeyError: 1"),
        (SAY + "out.write('x' * (64 << 20))", ""),
    ],
)
def test_each_failure_is_one_line(trace, program, word):
    answers = ask(trace, program)
    assert answers.get("overlap", HtaOverlap) is None
    assert not answers.has("overlap")
    assert word in answers.error("overlap")
    assert len(answers.error("overlap").splitlines()) == 1


def test_files_that_hta_cannot_read_start_nothing(tmp_path):
    (zstd := tmp_path / "a.json.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    os.mkfifo(fifo := tmp_path / "b.json")
    files = {0: zstd, 1: fifo, 2: tmp_path / "nothing.json"}
    answers = ask_all(files, ("overlap",), 60.0, f"open({str(tmp_path / 'started')!r}, 'w')")
    assert all(answer.error("overlap") for answer in answers.values())
    assert not (tmp_path / "started").exists()


def test_more_files_than_children_are_all_asked(tmp_path):
    files = {rank: tmp_path / f"{rank}.json" for rank in range(6)}
    for path in files.values():
        path.write_text("{}")
    answers = ask_all(files, (), 60.0, say_version("str(job['rank'])"))
    assert {rank: format_source_name([answer]) for rank, answer in answers.items()} == {
        rank: f"HTA {rank}" for rank in files
    }


def test_limits_grow_with_the_file_and_stay_below_the_machine():
    small, large = choose_limits(1), choose_limits(1 << 30, children=4)
    assert (small.memory_bytes, small.wall_s) < (large.memory_bytes, large.wall_s)
    assert 4 * large.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
