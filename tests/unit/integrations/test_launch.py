"""Starting ranks: environment, failure of one rank, what is said of it."""

import json
import os
import signal
from pathlib import Path

import pytest

from zprof.integrations.launch import RankFailed, launch

SAY_ENVIRONMENT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
"""


def test_every_rank_gets_its_environment(tmp_path: Path) -> None:
    launch(["-c", SAY_ENVIRONMENT, str(tmp_path)], world_size=3)
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [one["RANK"] for one in seen] == ["0", "1", "2"]
    assert {one["WORLD_SIZE"] for one in seen} == {"3"}
    assert len({one["MASTER_PORT"] for one in seen}) == 1


def test_a_failing_rank_is_named_with_its_last_line() -> None:
    code = "import os, sys; sys.exit('out of luck' if os.environ['RANK'] == '1' else 0)"
    with pytest.raises(RankFailed, match=r"rank 1 ended with exit code 1: out of luck"):
        launch(["-c", code], world_size=2)


def test_a_killed_rank_is_the_origin_even_where_others_fail_too() -> None:
    code = (
        "import os, sys, signal\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.exit('my peer is gone')"
    )
    with pytest.raises(RankFailed, match=r"rank 1 was ended by signal 9"):
        launch(["-c", code], world_size=2)


def test_an_error_while_waiting_leaves_no_process_behind() -> None:
    ids: list[int] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(
            ["-c", "import signal; signal.pause()"],
            world_size=2,
            on_poll=interrupt,
            on_start=ids.extend,
        )
    for process_id in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, signal.SIGCONT)
