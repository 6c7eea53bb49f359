"""Ranks of the reference job: how they start, how the failure of one is named, and what they state."""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from zprof.integrations.reference_job import RankFailed, launch
from zprof.integrations.reference_rank import describe_modelled_parts
from zprof.process.interrupts import keep_interrupts
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig

SAY_ENVIRONMENT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
"""
#: Writes a name of a temporary folder, and waits.
KEEP = (
    "import os, signal, sys, tempfile\n"
    "open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w').write(tempfile.mkdtemp())\n"
    "signal.pause()"
)
#: Answers SIGTERM with an interrupt of its parent, and goes on.
STUBBORN = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))\n"
    "open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w').write('ready')\n"
    "while True: signal.pause()"
)


def test_every_rank_gets_its_environment(tmp_path: Path) -> None:
    launch(["-c", SAY_ENVIRONMENT, str(tmp_path)], world_size=3)
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in seen] == [("0", "0"), ("1", "1"), ("2", "2")]
    assert {one[name] for one in seen for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {"3"}


@pytest.mark.parametrize(
    ("code", "words", "exit_code"),
    [
        ("import os, sys; sys.exit('out of luck' if rank else 0)", "rank 1 .* 1: out of luck(?m:$)", 70),
        # Its message goes on for lines that say nothing; the other rank has to be ended.
        (
            "if rank: signal.pause()\nraise RuntimeError('no route\\nException raised from x\\nframe #0: y')",
            "rank 0 .* 1: RuntimeError: no route(?m:$)",
            70,
        ),
        # A killed rank is the origin, even if others fail too.
        ("if rank: os.kill(os.getpid(), signal.SIGKILL)\nsys.exit('my peer is gone')", "rank 1 .* 9", 2),
    ],
)
def test_the_rank_that_failed_first_is_named(code: str, words: str, exit_code: int) -> None:
    program = f"import os, signal, sys\nrank = int(os.environ['RANK'])\n{code}"
    with pytest.raises(RankFailed, match=words) as failed:
        launch(["-c", program], world_size=2, failure_grace_s=0.2)
    assert failed.value.exit_code == exit_code


@pytest.fixture
def own_handler() -> Any:
    """Python's handler, which a shell's background job would not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("code", [KEEP, STUBBORN], ids=["keeps a folder", "ignores its end"])
def test_an_interrupt_leaves_neither_process_nor_folder(code: str, own_handler: None, tmp_path: Path) -> None:
    ids: list[int] = []

    def interrupt() -> None:
        if sum(path.stat().st_size > 0 for path in tmp_path.iterdir()) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(
            ["-c", code, str(tmp_path)],
            world_size=2,
            on_poll=interrupt,
            on_start=ids.extend,
            end_grace_s=0.3,
        )
    assert len(ids) == 2
    for process_id in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, signal.SIGCONT)
    assert not [path for path in tmp_path.iterdir() if Path(path.read_text()).is_dir()]


def test_an_interrupt_that_is_not_yet_raised_is_raised_before_ranks_start(
    own_handler: None, tmp_path: Path
) -> None:
    with keep_interrupts() as interrupts:
        interrupts.received = True
        with pytest.raises(KeyboardInterrupt):
            launch(["-c", SAY_ENVIRONMENT, str(tmp_path)], world_size=2)
    assert not list(tmp_path.iterdir())


def config(line: str) -> TrainConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_config(parser.parse_args(line.split()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--stage 3 --accumulate 2", []),
        ("--plant low_bus_bandwidth", ["low_bus_bandwidth", "50.0 MB/s", "50.0 µs", "12.0 ms", "24.0 ms"]),
        ("--plant buffers_dominate", ["buffers_dominate"]),
        ("--straggler-rank 0 --straggler-ms 40", ["rank 0", "40.0 ms"]),
        ("--plant rotating_straggler --straggler-ms 7", ["7.0 ms"]),
    ],
)
def test_all_modelled_parts_are_stated(options: str, words: list[str]) -> None:
    text = "; ".join(describe_modelled_parts(config(options)))
    assert bool(text) == bool(words)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("options", ["--batch 8 --context 64", "--batch 8 --context 64 --accumulate 2"])
def test_tokens_of_a_step_are_those_of_all_ranks(options: str) -> None:
    assert [config(options).tokens_per_step(dp) for dp in (1, 4)] == [512, 512]


def test_shorter_sequences_count_as_they_are() -> None:
    """Planted: the sequences of all ranks but the first are shorter."""
    alone, two, four = (
        config("--plant uneven_shapes --batch 8").tokens_per_step(ranks) for ranks in (1, 2, 4)
    )
    assert alone > two > four > 0
