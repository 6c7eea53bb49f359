"""Programs of each framework, recorded as their users would: memory to the byte, steps, stage and losses."""

from pathlib import Path

import pytest

from tests.programs.bed import (
    PLANTED_CAUSES,
    Cell,
    Outcome,
    busy_process,
    list_cells,
    list_planted_cells,
    record_cell,
    run_plain,
)
from tests.support import exact_counter
from zprof.model.tenants import Tenant

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(exact_counter.compiler() is None, reason="the exact counter needs a C compiler"),
]
#: One of each kind of engine in every run of the tests, those that are installed.
FAST = (
    "fsdp1 --strategy full --use-orig-params 1",
    "deepspeed_zero --stage 2 --groups 2",
    "deepspeed_zero --stage 3 --groups 2",
    "hf_trainer --sharding deepspeed2 --micro-batches 2 --evaluate",
)
CELLS = [
    pytest.param(cell, id=cell.name, marks=() if cell.name in FAST else pytest.mark.slow)
    for cell in list_cells()
]
PLANTED_CELLS = [pytest.param(cell, id=cell.name) for cell in list_planted_cells()]
#: Untagged bytes as a share of the peak.
MAX_UNTAGGED_RATIO = 0.001


def check(cell: Cell, outcome: Outcome) -> None:
    assert outcome.code == 0
    assert sorted(outcome.truth) == list(range(cell.ranks))
    for memory in outcome.report.memory.per_rank:
        truth = outcome.truth[memory.rank]
        assert memory.peak_bytes == truth["peak_bytes"]
        assert memory.untagged_bytes <= MAX_UNTAGGED_RATIO * memory.peak_bytes
        states = {Tenant(name): size for name, size in truth["states"].items()}
        assert {tenant: memory.state_bytes[tenant] for tenant in states} == states
        walked = truth["walked"]  # from the engine's live tensors: the closed forms themselves are right
        assert not walked or {name: walked[name] for name in truth["states"]} == truth["states"]
    # Steps 0 and 1 are skipped, 2 and 3 are for memory, 3 more are timed.
    assert outcome.run.last_step(0) == 6
    assert outcome.run.rank_manifests[0].time_steps == (4, 5, 6)


@pytest.mark.parametrize("cell", CELLS)
def test_a_recording_agrees_with_what_the_program_knows(cell: Cell, tmp_path: Path) -> None:
    if not cell.is_installed():
        pytest.skip(f"{cell.package} is not installed")
    outcome = record_cell(cell, tmp_path, exact_counter.build(tmp_path))
    check(cell, outcome)
    plain = run_plain(cell, tmp_path)
    assert {rank: truth["losses"] for rank, truth in outcome.truth.items()} == plain


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize("cell", PLANTED_CELLS)
def test_a_planted_cause_is_found_first_or_told_as_a_gap(cell: Cell, tmp_path: Path) -> None:
    if not cell.is_installed():
        pytest.skip(f"{cell.package} is not installed")
    with busy_process():
        outcome = record_cell(cell, tmp_path)
    cause = PLANTED_CAUSES[cell.plant]
    if cause is None:
        assert outcome.confident == []
    else:
        assert outcome.finds_first(cause) or outcome.has_gap(cause), outcome.confident
