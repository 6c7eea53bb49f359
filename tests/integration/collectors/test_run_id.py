"""The name of a recording, agreed on by real ranks."""

import json
from pathlib import Path

import pytest

from tests.support.forked_ranks import run_forked

PROGRAM = """
import json, sys
import torch.distributed as dist
from zprof.collectors.identity import agree_on_run_id

dist.init_process_group("gloo")
names = [agree_on_run_id() for _ in range(3)]
with open(f"{sys.argv[1]}/{dist.get_rank()}.json", "w") as file:
    json.dump(names, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.ranks
def test_all_ranks_share_a_name_and_each_recording_has_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ranks = run_forked([str(program), str(tmp_path)], 3, tmp_path)
    assert [rank.code for rank in ranks] == [0] * 3, ranks
    first, *others = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert others == [first, first]
    assert len(set(first)) == 3
