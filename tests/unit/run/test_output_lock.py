"""One output has one writer, however the last one ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.run.output_path import lock_output

HOLD = """
import sys, time
from pathlib import Path
from zprof.run.output_path import lock_output
with lock_output(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
ROOT = str(Path(__file__).parents[3])


def try_to_write(path: Path) -> None:
    with lock_output(path):
        pass


def test_the_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.zprof"
    with lock_output(path):
        with pytest.raises(BadInput, match=f"x.zprof: .*{os.getpid()}"):
            try_to_write(path)
        try_to_write(path.with_name("y.zprof"))
    try_to_write(path)
    assert list(path.parent.iterdir()) == []


def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.zprof"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ROOT},
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"held\n"
            with pytest.raises(BadInput, match=str(writer.pid)):
                try_to_write(path)
        finally:
            writer.send_signal(signal.SIGKILL)
    try_to_write(path)
    assert list(tmp_path.iterdir()) == []


def test_a_fork_does_not_keep_the_lock(tmp_path: Path) -> None:
    with lock_output(tmp_path / "x.zprof"):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        try_to_write(tmp_path / "x.zprof")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_place_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        try_to_write(Path("/proc/self/x.zprof"))
