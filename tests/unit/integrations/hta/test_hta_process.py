"""HTA's child: what it said counts, however it ends, and nothing of it is left behind."""

import gzip
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from zprof.integrations.hta import process
from zprof.integrations.hta import process as parent
from zprof.integrations.hta.answers import Overlap
from zprof.integrations.hta.child import Limits, limits_for
from zprof.integrations.hta.process import ask_all, source_name

#: Programs in place of the child: argv is ROOT, JOB; the working folder is the child's own.
SAY = "import json, sys; job = json.loads(sys.argv[2]); out = open('answers.jsonl', 'w');"
OVERLAP = "print(json.dumps({'what': 'overlap', 'value': {'percent': 12.5}}), file=out, flush=True);"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank 0; $(x)\n\x1b.json"
    path.write_text("{}")
    return path


def asked(path: Path, program: str, wall_s: float = 60.0):
    return ask_all({0: path}, ("overlap",), wall_s, program)[0]


def test_it_gets_a_link_whose_ending_is_what_the_file_is(tmp_path):
    packed = tmp_path / "trace.json"
    packed.write_bytes(gzip.compress(b'{"a": 1}'))
    plain = tmp_path / "trace.gz"
    plain.write_text('{"b": 1}')
    echo = SAY + "print(json.dumps({'what': 'version', 'value': job['path'][-10:] + open(job['path'], 'rb')"
    echo += ".read().hex()}), file=out)"
    assert asked(packed, echo).version == "ce.json.gz" + packed.read_bytes().hex()
    assert asked(plain, echo).version == "trace.json" + plain.read_bytes().hex()


def test_its_environment_turns_rounding_off_and_hides_the_home(trace):
    echo = SAY + "import os; names = ('HTA_DISABLE_NS_ROUNDING', 'OPENBLAS_NUM_THREADS', 'HOME');"
    echo += (
        "print(json.dumps({'what': 'version', 'value': ' '.join(os.environ[n] for n in names)}), file=out)"
    )
    rounding, threads, home = (asked(trace, echo).version or "").split(" ", 2)
    assert (rounding, threads) == ("1", "1")
    assert home != os.environ.get("HOME")
    assert not Path(home).exists()


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a child writes when it hangs: from then on its time is over."""
    path = tmp_path / "seen"

    def monotonic() -> float:
        return 1e9 if path.exists() and path.read_text().endswith("!") else 0.0

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    return path


def test_what_was_said_before_its_time_ran_out_counts(trace, seen):
    hang = f"open({str(seen)!r}, 'w').write('!'); import time; time.sleep(600)"
    answers = asked(trace, SAY + OVERLAP + hang)
    assert answers.get("overlap", Overlap) == Overlap(percent=12.5)
    assert answers.error("temporal") == "it took more than 60 s and was ended"


def test_what_it_started_ends_with_it(trace, seen):
    start = "import subprocess, sys, time;"
    start += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    asked(trace, f"{start} open({str(seen)!r}, 'w').write(f'{{p.pid}}!'); time.sleep(600)")
    with pytest.raises(ProcessLookupError):
        _alive(int(seen.read_text()[:-1]))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "memory"),
        ("import os; os.abort()", "status -6"),
        ("raise SystemExit(7)", "status 7"),
        ("pass", "cannot be read"),
        (SAY + "out.write('not json\\n{\"what\": 3}\\n[]\\n\\udcff')", "status 1"),
        (
            SAY + "print(json.dumps({'what': 'overlap', 'value': {'percent': 'x'}}), file=out)",
            "cannot be read",
        ),
        (
            SAY + "print(json.dumps({'what': 'overlap', 'error': 'ValueError: no'}), file=out)",
            "ValueError: no",
        ),
        (SAY + "print(json.dumps({'what': 'load', 'error': 'KeyError: 1'}), file=out)", "KeyError: 1"),
        (SAY + "out.write('x' * (64 << 20))", "cannot be read"),
    ],
)
def test_each_end_is_told_in_one_line(trace, program, words):
    answers = asked(trace, program)
    assert answers.get("overlap", Overlap) is None
    assert not answers.has("overlap")
    assert words in answers.error("overlap")
    assert len(answers.error("overlap").splitlines()) == 1


def test_files_that_hta_cannot_read_start_nothing(tmp_path):
    zstd = tmp_path / "a.json.zst"
    zstd.write_bytes(b"\x28\xb5\x2f\xfd....")
    fifo = tmp_path / "b.json"
    os.mkfifo(fifo)
    files = {0: zstd, 1: fifo, 2: tmp_path / "nothing.json"}
    answers = ask_all(files, ("overlap",), 60.0, "raise SystemExit('started')")
    assert "zstd" in answers[0].error("overlap")
    assert "plain file" in answers[1].error("overlap")
    assert "No such file" in answers[2].error("overlap")


def test_more_files_than_children_are_all_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(parent, "_MAX_CHILDREN", 2)
    files = {rank: tmp_path / f"{rank}.json" for rank in range(5)}
    for path in files.values():
        path.write_text("{}")
    program = SAY + "print(json.dumps({'what': 'version', 'value': str(job['rank'])}), file=out)"
    answers = ask_all(files, (), 60.0, program)
    assert {rank: answer.version for rank, answer in answers.items()} == {rank: str(rank) for rank in files}
    assert source_name([answers[3]]) == "HTA 3"
    assert source_name([]) == "HTA"


def test_limits_grow_with_the_file_and_stay_below_the_machine():
    small, large = limits_for(1), limits_for(1 << 30, children=4)
    assert small.memory_bytes < large.memory_bytes
    assert small.wall_s < large.wall_s
    assert 4 * large.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert limits_for(1 << 30, wall_s=5.0).wall_s == 5.0


def test_memory_above_the_limit_is_refused_to_the_child(trace):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import json;"
        "from zprof.integrations.hta.child import Limits, apply_limits;"
        "limits = json.loads(sys.argv[2])['limits'];"
        "apply_limits(Limits(**limits)); bytearray(limits['memory_bytes'] + (1 << 20))"
    )
    assert "status 1" in asked(trace, program).error("overlap")
    assert Limits(**json.loads(json.dumps({"memory_bytes": 1, "processor_s": 1, "wall_s": 1.0}))).processor_s


def _alive(pid: int) -> None:
    """Raise where the process has ended; one whose parent has died is listed until init reaps it."""
    os.kill(pid, 0)
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    if state in "ZX":
        raise ProcessLookupError
