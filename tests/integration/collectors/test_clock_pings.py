"""Real ranks agree on a name and fire clock pings that share an instant; a lone recorder never hangs."""

import json
from pathlib import Path

import pytest

from tests.support.forked_ranks import run_forked

PROGRAM = """
import json, sys
import torch.distributed as dist
from zprof.collectors.record.clock_pings import ClockPings
from zprof.collectors.record.identity import agree_on_run_id
from zprof.collectors.record.logs import MarkLog

dist.init_process_group("gloo")
rank, marks, case = dist.get_rank(), MarkLog(), sys.argv[2]
names = [agree_on_run_id() for _ in range(3)]
gaps, fired = [], []
for _ in range(2 if case == "all" else 1):
    if case != "one" or rank == 0:
        schedule = f"time={rank}" if case == "different" else "time=4"
        pings = ClockPings(marks, schedule=schedule, agree_s=1.0)
        fired.append(pings.send())
        if case == "leave":
            if rank == 0:
                pings.leave()
            dist.barrier()
            fired.append(pings.send())
        gaps += [gap.reason for gap in pings.gaps()]
dist.barrier()
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump({"marks": marks.columns(), "gaps": len(gaps), "fired": fired, "names": names}, file)
dist.destroy_process_group()
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("case", "fired", "pings", "gaps"),
    [
        ("all", [2, 2], [6, 6], [0, 0]),
        ("one", [1, 0], [0, 0], [1, 0]),
        ("different", [1, 1], [0, 0], [1, 1]),
        ("leave", [2, 2], [3, 3], [1, 1]),
    ],
)
def test_pings(case: str, fired: list[int], pings: list[int], gaps: list[int], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = run_forked([str(program), str(tmp_path), case], 2, tmp_path)
    assert [rank.code for rank in ended] == [0, 0], ended
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [rank["fired"] for rank in ranks] == [[True] * count for count in fired]
    assert [rank["gaps"] for rank in ranks] == gaps
    assert ranks[0]["names"] == ranks[1]["names"]
    assert len(set(ranks[0]["names"])) == 3
    for rank, count in zip(ranks, pings, strict=True):
        assert rank["marks"]["kind"] == ["ping_begin", "ping_end"] * count
    first, second = (rank["marks"]["time_ns"] for rank in ranks)
    for place in range(0, min(len(first), len(second)), 2):
        begins, ends = (first[place], second[place]), (first[place + 1], second[place + 1])
        assert max(begins) <= min(ends)  # nobody leaves before all have entered
