"""Clock pings on real ranks: all fire, they bracket the same instants, and a lone recorder never hangs."""

import json
from pathlib import Path

import pytest

from tests.support.forked_ranks import run_forked

PROGRAM = """
import json, os, sys, time
import torch.distributed as dist
from zprof.collectors.clock import ClockPings
from zprof.collectors.logs import MarkLog

dist.init_process_group("gloo")
rank, marks = dist.get_rank(), MarkLog()
records = rank in json.loads(sys.argv[2])
gaps, fired, rounds = [], [], int(sys.argv[3])
for _ in range(rounds):
    if records:
        schedule = json.loads(sys.argv[4])[rank]
        pings = ClockPings(marks, schedule=schedule, agree_s=1.0)
        fired.append(pings.fire())
        if sys.argv[5] == "leave":
            if rank == 0:
                pings.leave()
            dist.barrier()
            fired.append(pings.fire())
        gaps += [gap.reason for gap in pings.gaps()]
dist.barrier()
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump({"marks": marks.columns(), "gaps": gaps, "fired": fired}, file)
dist.destroy_process_group()
"""


def play(
    folder: Path,
    recording: list[int],
    rounds: int = 1,
    schedules: tuple[str, str] = ("", ""),
    end: str = "stay",
) -> list[dict]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    arguments = [str(folder), json.dumps(recording), str(rounds), json.dumps(schedules), end]
    ranks = run_forked([str(program), *arguments], 2, folder)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.ranks
def test_all_ranks_fire_three_pings_that_share_an_instant(tmp_path: Path) -> None:
    ranks = play(tmp_path, [0, 1], rounds=2)
    spans = []
    for rank in ranks:
        assert rank["gaps"] == []
        assert rank["fired"] == [True, True]
        assert rank["marks"]["kind"] == ["ping_begin", "ping_end"] * 6
        times = rank["marks"]["time_ns"]
        spans.append(list(zip(times[::2], times[1::2], strict=True)))
    for first, second in zip(*spans, strict=True):
        assert max(first[0], second[0]) <= min(first[1], second[1]), "nobody leaves before all have entered"


@pytest.mark.ranks
def test_a_program_that_records_on_one_rank_goes_on_with_a_gap(tmp_path: Path) -> None:
    first, second = play(tmp_path, [0])
    assert first["gaps"] == ["not every rank started a recording in time"]
    assert first["marks"]["kind"] == second["marks"]["kind"] == []


@pytest.mark.ranks
def test_ranks_that_record_different_steps_fire_no_pings(tmp_path: Path) -> None:
    for rank in play(tmp_path, [0, 1], schedules=("time=4", "time=8")):
        assert rank["gaps"] == ["ranks record different steps"]
        assert rank["marks"]["kind"] == []


@pytest.mark.ranks
def test_nobody_waits_for_a_rank_that_ended_early(tmp_path: Path) -> None:
    for rank in play(tmp_path, [0, 1], end="leave"):
        assert rank["fired"] == [True, True]
        assert rank["marks"]["kind"] == ["ping_begin", "ping_end"] * 3
        assert rank["gaps"] == ["a rank ended its recording before the last scheduled step"]
