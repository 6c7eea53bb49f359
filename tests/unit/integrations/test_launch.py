"""Starting ranks: environment, failure of one rank, what is said of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zprof.integrations import reference_job as launching
from zprof.integrations.reference_job import RankFailed, launch
from zprof.model.interrupts import keep_interrupts

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


def test_what_a_rank_keeps_for_a_moment_goes_with_it(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, tempfile\n"
        "open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w').write(tempfile.mkdtemp())\n"
        "signal.pause()"
    )

    def interrupt() -> None:
        if sum(path.stat().st_size > 0 for path in tmp_path.iterdir()) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(["-c", code, str(tmp_path)], world_size=2, on_poll=interrupt)
    assert not [path for path in tmp_path.iterdir() if Path(path.read_text()).exists()]


def test_a_failing_rank_is_named_with_its_last_line() -> None:
    code = "import os, sys; sys.exit('out of luck' if os.environ['RANK'] == '1' else 0)"
    with pytest.raises(RankFailed, match=r"rank 1 ended with exit code 1: out of luck") as failed:
        launch(["-c", code], world_size=2)
    assert failed.value.exit_code == 70


def test_a_failing_rank_is_named_though_the_others_had_to_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message goes on for lines that say nothing, as those of torch do."""
    monkeypatch.setattr(launching, "_GRACE_S", 0.2)
    code = (
        "import os, signal, sys\n"
        "if os.environ['RANK'] == '1': signal.pause()\n"
        "raise RuntimeError('no route\\nException raised from x\\nframe #0: y')"
    )
    with pytest.raises(RankFailed, match=r"rank 0 ended with exit code 1: RuntimeError: no route$"):
        launch(["-c", code], world_size=2)


def test_a_killed_rank_is_the_origin_even_where_others_fail_too() -> None:
    code = (
        "import os, sys, signal\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.exit('my peer is gone')"
    )
    with pytest.raises(RankFailed, match=r"rank 1 was ended by signal 9") as failed:
        launch(["-c", code], world_size=2)
    assert failed.value.exit_code == 2


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


@pytest.fixture
def own_handler() -> Any:
    """Python's handler, which a shell's background job would not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_ranks_start_leaves_no_process_behind(
    monkeypatch: pytest.MonkeyPatch, own_handler: None
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = launching._start_rank

    def interrupted(*arguments: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments))
        os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(launching, "_start_rank", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch(["-c", "import signal; signal.pause()"], world_size=2)
    assert [process.returncode for process in started] == [-signal.SIGTERM] * 2


def test_an_interrupt_that_somebody_dropped_is_raised_before_ranks_start(
    monkeypatch: pytest.MonkeyPatch, own_handler: None
) -> None:
    """As the import of torch does: C code that calls Python, and clears what that raised."""

    class Dropping:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(100):
                pass

    started: list[object] = []
    monkeypatch.setattr(launching, "_start_rank", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    with keep_interrupts() as interrupts:
        Dropping()
        assert interrupts.received
        with pytest.raises(KeyboardInterrupt):
            launch(["-c", "pass"], world_size=2)
    assert not started


def test_a_rank_that_ignores_its_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, own_handler: None, tmp_path: Path
) -> None:
    """Also where Ctrl-C comes again meanwhile."""
    monkeypatch.setattr(launching, "_END_S", 0.3)
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))\n"
        "open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w').close()\n"
        "while True: signal.pause()"
    )
    ids: list[int] = []

    def interrupt() -> None:
        if len(list(tmp_path.iterdir())) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(["-c", code, str(tmp_path)], world_size=2, on_poll=interrupt, on_start=ids.extend)
    for process_id in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, signal.SIGCONT)
