"""Nothing that a rank started outlives it; no rank is started here."""

import os
import select
import subprocess
import sys

from zprof.testing.ranks import end_rank

TIME_LIMIT_S = 60
#: Starts a process that would live as long, and ends.
_PARENT = f"""
import subprocess, sys
child = "import sys, time; print(flush=True); time.sleep({TIME_LIMIT_S})"
subprocess.Popen([sys.executable, "-c", child])
"""


def test_the_child_of_a_rank_that_has_ended_is_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, start_new_session=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.wait(TIME_LIMIT_S) == 0
        assert rank.stdout.readline() == b"\n"  # the child lives
        end_rank(rank)
        # Its end of the pipe is closed with it.
        assert select.select([rank.stdout], [], [], TIME_LIMIT_S / 2)[0]
        assert os.read(rank.stdout.fileno(), 1) == b""


def test_a_rank_that_has_ended_alone_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as rank:
        rank.wait(TIME_LIMIT_S)
        end_rank(rank)
