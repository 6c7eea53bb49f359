"""The table of passes: of hand-made steps, of windows over several steps, and of simulated jobs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec import Struct

from tests.support.diagnoses import base
from tests.support.kineto_traces import MAIN, span
from tests.support.nccl_traces import Events, analysed, gemm, nccl, step
from tests.support.simulations import simulated
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import EMPTY, intervals, union
from zprof.analysis.time.activity import NamedWork, RankActivity
from zprof.analysis.time.passes import make_pass_rank, make_pass_table
from zprof.analysis.time.steps import PhaseEvidence, StepWindows
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.time import WindowPolicy
from zprof.simulator.job import Job, Vendor

#: Nanoseconds since 1970: as a float they would count in steps of 256.
ORIGIN = 1_700_000_000_000_000_000
WALL_NS = 10_000
COPY, GEMM = "void at::native::split_with_sizes_copy_out_contiguous(...)", "ampere_gemm"


class Launch(Struct, frozen=True):
    """What a host launched in a pass, 100 ns after the one before: a gather, a reduction or a kernel."""

    what: str
    unit: str = ""
    phase: str = "forward"


OPTIMIZER = [Launch(GEMM, "", "optimizer")]


def gather(unit: str, phase: str = "forward") -> Launch:
    return Launch("all_gather", unit, phase)


def forward(*units: str, pieces: int = 1) -> list[Launch]:
    return [one for unit in units for one in ([gather(unit), Launch(COPY)] * pieces + [Launch(GEMM)])]


def backward(*units: str, pieces: int = 1) -> list[Launch]:
    launches = []
    for unit in reversed(units):
        launches += [gather(unit, "backward"), Launch(COPY, "", "backward")] * pieces
        launches += [Launch(GEMM, "", "backward"), Launch("reduce_scatter", unit, "backward")]
    return launches


def passes_of(*steps: Sequence[Launch]) -> pd.DataFrame:
    """One rank; what is launched runs at once, for 50 ns."""
    rows, work, spans = [], [], {"forward": [], "backward": [], "optimizer": []}
    for number, launches in enumerate(steps):
        for place, one in enumerate(launches):
            launch = ORIGIN + number * WALL_NS + 100 * place
            spans[one.phase].append((launch - 10, launch + 40))
            if one.what in (COPY, GEMM):
                work.append((launch, launch, launch + 50, one.what))
                continue
            rows.append(
                {
                    "rank": 0, "step": number, "kind": one.what, "group": "0,1", "group_size": 2,
                    "bytes": 1 << 20, "unit": one.unit, "start_ns": launch, "end_ns": launch + 50,
                    "launch_start_ns": launch,
                }
            )  # fmt: skip
    times = np.array([row[:3] for row in work], dtype=np.int64)
    begins = ORIGIN + WALL_NS * np.arange(len(steps), dtype=np.int64)
    windows = StepWindows(number=np.arange(len(steps)), begin_ns=begins - 50, end_ns=begins + WALL_NS - 50)
    named = NamedWork(
        names=(COPY, GEMM),
        code=np.array([(COPY, GEMM).index(row[3]) for row in work]),
        times=times,
        stream=np.zeros(len(work), dtype=np.int64),
        copies=np.array([row[3] == COPY for row in work]),
        memcpy=np.zeros(len(work), dtype=np.bool_),
    )
    empty = dict.fromkeys(("waits", "anonymous_waits", "copies", "coverage", "launched"), EMPTY)
    compute = union(intervals(times[:, 1], times[:, 2]))
    activity = RankActivity(on_device=True, compute=compute, named=named, **empty)
    evidence = PhaseEvidence(**{name: np.array(s, dtype=np.int64) for name, s in spans.items() if s})
    timeline = RankTimeline(
        rank=0, host="", steps=windows, host_steps=windows, activity=activity, pings={}, evidence=evidence
    )
    collectives = Columns.from_rows(rows, rows[0])
    return make_pass_table(collectives, [make_pass_rank(timeline)]).to_frame()


def numbers(passes: pd.DataFrame) -> list[tuple[str, str, int | None]]:
    rows = passes[passes["kind"] == "all_gather"]
    number = [None if pd.isna(value) else int(value) for value in rows["number"]]
    return list(zip(rows["unit"], rows["phase"], number, strict=True))


def test_messages_with_no_compute_between_their_launches_are_one_gather() -> None:
    """Only copies stand between the pieces; the forward stands between the gathers of a unit."""
    passes = passes_of([*forward("a", "b", pieces=3), *backward("a", "b", pieces=3), *OPTIMIZER])
    assert numbers(passes) == [
        *[("a", "forward", 1)] * 3, *[("b", "forward", 1)] * 3,
        *[("b", "backward", 2)] * 3, *[("a", "backward", 2)] * 3,
    ]  # fmt: skip
    assert passes["in_micro_batch"].equals(passes["number"])
    between = passes[passes["number"] == 2].groupby("unit")["compute_between_ns"]
    assert between.nunique().eq(1).all()
    assert between.first()["b"] < between.first()["a"], "of b its forward, of a much more"


TRAINING = [*forward("a", "b"), *backward("a", "b"), *OPTIMIZER]
COUNTED = [("a", "forward", 1), ("b", "forward", 1), ("b", "backward", 2), ("a", "backward", 2)]


def test_reductions_that_all_seem_to_be_in_a_forward_are_of_a_backward() -> None:
    """A program without operators of a backward: nothing says that these reduce activations."""
    late = [*forward("a"), Launch("all_reduce", "", "forward"), *OPTIMIZER]
    passes = passes_of(late, late)
    assert set(zip(passes["kind"], passes["phase"], strict=True)) == {
        ("all_gather", "forward"),
        ("all_reduce", "backward"),
    }


@pytest.mark.parametrize(
    ("before", "after", "pieces"), [(0, 1, 1), (0, 3, 1), (1, 0, 1), (2, 2, 1), (0, 1, 2)]
)
def test_gathers_of_an_evaluation_are_not_of_the_training_step(before: int, after: int, pieces: int) -> None:
    evaluation = forward("a", "b", pieces=pieces)
    part = [*evaluation * before, *TRAINING, *evaluation * after]
    left_out = [*[("a", "forward", None)] * pieces, *[("b", "forward", None)] * pieces]
    passes = passes_of(part, TRAINING, part)
    expected = [*left_out * before, *COUNTED, *left_out * after]
    assert numbers(passes) == [*expected, *COUNTED, *expected]
    assert passes[passes["number"].isna()]["micro_batch"].isna().all()


AUTOGRAD = MAIN + 1


def micro_batch(begin: float, number: int) -> Events:
    """A forward, and a backward that reduces its gradients."""
    operators = [span("aten::mm", begin + 20 * n, begin + 20 * n + 15, MAIN, "cpu_op") for n in range(10)]
    node = span(
        "autograd::engine::evaluate_function: MmBackward0", begin + 300, begin + 600, AUTOGRAD, "cpu_op"
    )
    reduction = nccl(10 * number + 1, "allreduce", begin + 400, begin + 450, begin + 650, thread=AUTOGRAD)
    return [*operators, *gemm(10 * number + 2, begin + 5, begin + 10, begin + 300), node, *reduction]


@pytest.mark.parametrize(
    ("steps", "micro_batches", "optimizer", "marked", "expected"),
    [
        (5, 1, True, True, [0] * 5),
        (5, 1, True, False, [0] * 4),
        (1, 2, True, False, [0, 1]),
        (3, 2, True, False, [0, 1, 0, 1]),
        (3, 1, False, False, [None] * 3),
        (1, 1, False, False, [0]),
    ],
)
def test_steps_within_one_window_are_told_by_marks_and_optimizer(
    tmp_path: Path, steps: int, micro_batches: int, optimizer: bool, marked: bool, expected: list[int | None]
) -> None:
    events: Events = []
    for number in range(steps):
        begin = 10_000.0 * (1 + number)
        for index in range(micro_batches):
            events += micro_batch(begin + 1_000 * index, number * micro_batches + index)
        end = begin + 1_000 * micro_batches
        events += [span("Optimizer.step#SGD.step", end, end + 50)] if optimizer else []
        events += [step(number, begin - 10, end + 60)] if marked else []
    passes = analysed(tmp_path, {0: events}, world_size=2, policy=WindowPolicy.TRACE).passes.to_frame()
    assert [None if pd.isna(number) else number for number in passes["micro_batch"]] == expected
    assert passes["step"].nunique() == len(expected) // micro_batches or not optimizer


def job(vendor: Vendor, **changes: object) -> Job:
    small = {"ranks": 2, "steps": 3, "units": 4, "micro_batches": 2, "sync_every_micro_batch": True}
    return base(3, vendor, **small | {"regather_every_micro_batch": True, "last_unit_kept": False} | changes)


@pytest.mark.parametrize("vendor", ["nvidia", "gloo"])
def test_gathers_and_reductions_are_of_the_simulated_passes(vendor: Vendor, tmp_path: Path) -> None:
    made = job(vendor)
    passes = simulated(made, tmp_path).analysis.passes.to_frame()
    units = [block.name for block in made.blocks]
    forward_ns = sum(kernel.ns for kernel in made.blocks[0].forward)
    backward_ns = sum(kernel.ns for kernel in made.blocks[0].backward)
    gathered = [
        (unit, batch, phase)
        for batch in (0, 1)
        for phase, order in (("forward", units), ("backward", units[::-1]))
        for unit in order
    ]
    reduced = [(unit, batch) for batch in (0, 1) for unit in units[::-1]]
    for _, rows in passes.groupby(["rank", "step"]):
        gathers, others = rows[rows["kind"] == "all_gather"], rows[rows["kind"] != "all_gather"]
        assert list(zip(gathers["unit"], gathers["micro_batch"], gathers["phase"], strict=True)) == gathered
        assert list(zip(others["unit"], others["micro_batch"], strict=True)) == reduced
        assert gathers["number"].tolist() == gathers.groupby("unit").cumcount().add(1).tolist()
        assert set(gathers["in_micro_batch"]) == {1, 2}
    assert set(passes["method"]) == {"ranges"}
    # the last unit: its own forward alone; the first: every forward, and the backward of all others
    between = passes[passes["number"] == 2].groupby("unit")["compute_between_ns"].mean()
    assert between["layers.3"] < 2.5 * forward_ns
    assert between["layers.0"] > 3 * forward_ns + 3 * backward_ns * 0.6
    assert passes.loc[passes["number"] == 1, "compute_between_ns"].isna().all()


@pytest.mark.parametrize("vendor", ["nvidia", pytest.param("gloo", marks=pytest.mark.slow)])
def test_reductions_without_units_have_their_micro_batch_from_autograd(
    vendor: Vendor, tmp_path: Path
) -> None:
    passes = simulated(job(vendor, stage=0, clip=False), tmp_path).analysis.passes.to_frame()
    assert (set(passes["method"]), set(passes["phase"])) == ({"autograd"}, {"backward"})
    assert passes.groupby("micro_batch").size().nunique() == 1
    assert set(passes["micro_batch"]) == {0, 1}
