"""Where a GPU's memory is, as zprof says of a step that it recorded, against the allocator's own counters."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.device.memory import (
    AWAITED_BYTES,
    PIECE_BYTES,
    PIECES,
    RecordedStep,
    find_report_faults,
    leave_fragments,
    leave_free_waiting,
    record_step,
)
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant

Record = Callable[..., RecordedStep]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    folders = (tmp_path / str(number) for number in itertools.count())

    def run(**options: Any) -> RecordedStep:
        folder = next(folders)
        folder.mkdir()
        return record_step(folder, **options)

    return run


@pytest.mark.parametrize("fused", [True, False])
def test_the_peak_and_the_identity_are_the_allocators(record: Record, fused: bool) -> None:
    run = record(fused=fused)
    assert find_report_faults(run) == []
    memory = run.analysis.memory.per_rank[0]
    assert memory.device.startswith("cuda")
    assert memory.tenants[Tenant.OPTIMIZER_STATE] > memory.tenants[Tenant.PARAMETERS] > 0


def test_a_fused_optimizer_needs_no_temporaries(record: Record) -> None:
    fused = record(fused=True).analysis.memory.phases
    peaks = {peak.phase: peak for peak in fused}
    parameters = peaks["optimizer"].tenants[Tenant.PARAMETERS]
    assert peaks["optimizer"].tenants[Tenant.TEMPORARY_BUFFERS] < parameters // 4


def test_a_block_that_another_stream_uses_awaits_its_free(record: Record) -> None:
    run = record(after_forward=leave_free_waiting)
    assert find_report_faults(run) == []
    assert any((leaf.awaiting_free_bytes or 0) >= AWAITED_BYTES for leaf in run.analysis.memory.devices)


def test_free_pieces_between_used_ones_are_split(record: Record) -> None:
    without = record()
    with_pieces = record(after_forward=leave_fragments)
    assert find_report_faults(with_pieces) == []
    grown = (with_pieces.devices["allocated peak"].split_bytes or 0) - (
        without.devices["allocated peak"].split_bytes or 0
    )
    # Backward may use some of them again: they fit what is no larger.
    assert grown > PIECE_BYTES * PIECES // 8


def test_the_same_steps_snapshot_agrees_and_says_that_rules_made_it(record: Record) -> None:
    run = record(fused=False)
    live, imported = run.analysis.memory.per_rank[0], run.imported.memory.per_rank[0]
    assert imported.peak_bytes == pytest.approx(live.peak_bytes, rel=0.01)
    basis = imported.basis_bytes or {}
    assert basis[Basis.TAGGED] == 0
    assert sum(basis.values()) == imported.peak_bytes
    assert "rules on stacks" in imported.method
    activations = live.tenants[Tenant.ACTIVATIONS]
    assert imported.tenants[Tenant.ACTIVATIONS] == pytest.approx(activations, rel=0.05)


def test_recording_leaves_the_allocators_history_off(record: Record) -> None:
    record()
    assert not torch._C._cuda_isHistoryEnabled()
