"""ZeRO-R by the tenants of recorded runs (arXiv 1910.02054, section 6), to the byte.

Pa divides checkpoints by the model-parallel degree, Pa+cpu leaves none of them on the device, MD keeps them
in one chunk.  CB's communication buffers know neither the number of layers nor their width; what gloo
allocates for itself within a collective (``backend_scratch``) is left out there.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import zprof
from tests.support.forked_ranks import run_forked
from zprof.analysis.memory.live_bytes import (
    RankLives,
    compute_live_curve,
    find_peak,
    list_devices,
    read_rank_lives,
    sum_by_tenant,
)
from zprof.analysis.memory.tables import TENANT_CODES
from zprof.analysis.memory.timeline import read_timeline
from zprof.integrations.reference_job import ReferenceJob
from zprof.model.tenants import Tenant

pytestmark = pytest.mark.ranks

LAYERS, HIDDEN, CONTEXT, BATCH, RANKS = 3, 32, 16, 4, 2
#: A block's input on every rank of a tensor-parallel group, fp32.
CHECKPOINT = BATCH * CONTEXT * HIDDEN * 4
CHECKPOINTS = LAYERS * CHECKPOINT
BUFFER_ELEMENTS, BUFFERS = 2048, 2

SPLIT = {"mp": RANKS, "stage": 2, "checkpoint": True}
CONSTANT = {"stage": 2, "constant_buffers": BUFFER_ELEMENTS}
RUNS: dict[str, dict[str, Any]] = {
    "whole": SPLIT,
    "md": SPLIT | {"defragment": True},
    "pa": SPLIT | {"pa": True},
    "pa+md": SPLIT | {"pa": True, "defragment": True},
    "pa+cpu": SPLIT | {"pa": True, "pa_cpu": True},
    "cb": CONSTANT,
    "cb, twice the layers and the width": CONSTANT | {"layers": 2 * LAYERS, "hidden": 2 * HIDDEN},
    "buffers of a unit, twice the width": {"stage": 2, "hidden": 2 * HIDDEN},
}
Lives = Callable[[str], list[RankLives]]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """What lived in each rank's memory in one step of a run; recorded when it is first asked for."""
    folder = tmp_path_factory.mktemp("zero_r")
    return cache(lambda name: recorded(RUNS[name], folder / f"{list(RUNS).index(name)}.zprof"))


def recorded(options: dict[str, Any], path: Path) -> list[RankLives]:
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "heads": 2, "vocabulary": 64, "context": CONTEXT}
    job = ReferenceJob(
        world_size=RANKS,
        options=sizes | {"batch": BATCH, "steps": 3} | options,
        run=path,
        skip_steps=1,
        memory_steps=1,
        time_steps=0,
    )
    log = path.with_suffix(".logs")
    log.mkdir()
    for rank in run_forked(["-m", "zprof.integrations.reference_rank", job.to_json()], RANKS, log):
        assert rank.code == 0, rank.lines[-20:]
    run = zprof.load(path)
    return [rank_of(run, rank) for rank in run.ranks]


def rank_of(run: zprof.Run, rank: int) -> RankLives:
    alloc, timeline = run.frame(rank, "alloc"), read_timeline(run.frame(rank, "mark"))
    assert timeline is not None
    return read_rank_lives(alloc, run.frame(rank, "role"), timeline, list_devices(alloc)[0])


def activations_after_the_forward(rank: RankLives) -> int:
    backwards = [time_ns for time_ns, phase in rank.timeline.phases if phase == "backward"]
    begin_ns = next(time_ns for time_ns in backwards if time_ns >= rank.timeline.begin_ns)
    return int(sum_by_tenant(rank.segments, begin_ns - 1)[TENANT_CODES[Tenant.ACTIVATIONS]])


def most_communication_buffers(rank: RankLives) -> int:
    segments = rank.segments
    ours = (segments.tenant == TENANT_CODES[Tenant.COMMUNICATION_BUFFERS]) & (
        segments.sub != "backend_scratch"
    )
    begins, ends, sizes = (part[ours] for part in (segments.begin_ns, segments.end_ns, segments.bytes))
    times, live = compute_live_curve(begins, ends, sizes)
    return find_peak(times, live, rank.timeline.begin_ns, rank.timeline.end_ns)[1]


@pytest.mark.parametrize(
    ("switches", "kept"),
    [
        ("md", CHECKPOINTS),
        ("pa", CHECKPOINTS // RANKS),
        pytest.param("pa+md", CHECKPOINTS // RANKS, marks=pytest.mark.slow),
        pytest.param("pa+cpu", 0, marks=pytest.mark.slow),
    ],
)
def test_checkpoints_between_forward_and_backward(lives: Lives, switches: str, kept: int) -> None:
    for whole, other in zip(lives("whole"), lives(switches), strict=True):
        saved = activations_after_the_forward(whole) - activations_after_the_forward(other)
        assert saved == CHECKPOINTS - kept


def test_no_rank_keeps_less_than_its_checkpoints(lives: Lives) -> None:
    assert all(activations_after_the_forward(rank) > CHECKPOINTS for rank in lives("whole"))


@pytest.mark.parametrize("run", ["cb", "cb, twice the layers and the width"])
def test_constant_buffers_are_all_that_communication_takes(lives: Lives, run: str) -> None:
    for rank in lives(run):
        assert most_communication_buffers(rank) == BUFFERS * BUFFER_ELEMENTS * 4


def test_without_them_buffers_grow_with_the_width(lives: Lives) -> None:
    for rank in lives("buffers of a unit, twice the width"):
        assert most_communication_buffers(rank) > 4 * BUFFERS * BUFFER_ELEMENTS * 4
