"""The table of passes from hand-made steps: pieces of a gather, and forwards that no backward follows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from zprof.analysis.intervals import EMPTY, intervals, union
from zprof.analysis.time.activity import Activity, NamedWork
from zprof.analysis.time.passes.phases import PhaseEvidence
from zprof.analysis.time.passes.table import make_pass_table
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.timeline import RankTimeline

#: Nanoseconds since 1970: as a float they would count in steps of 256.
ORIGIN = 1_700_000_000_000_000_000
WALL_NS = 10_000
COPY, GEMM = "void at::native::split_with_sizes_copy_out_contiguous(...)", "ampere_gemm"


@dataclass(frozen=True)
class Did:
    """What a host launched: a gather, a reduction or compute, in a pass; 100 ns after the one before."""

    what: str
    unit: str = ""
    phase: str = "forward"


def gather(unit: str, phase: str = "forward") -> Did:
    return Did("all_gather", unit, phase)


def forward(*units: str, pieces: int = 1) -> list[Did]:
    return [did for unit in units for did in ([gather(unit), Did(COPY)] * pieces + [Did(GEMM)])]


def backward(*units: str, pieces: int = 1) -> list[Did]:
    return [
        did
        for unit in reversed(units)
        for did in (
            [gather(unit, "backward"), Did(COPY, "", "backward")] * pieces
            + [Did(GEMM, "", "backward"), Did("reduce_scatter", unit, "backward")]
        )
    ]


OPTIMIZER = [Did(GEMM, "", "optimizer")]


def passes_of(*steps: Sequence[Did]) -> pd.DataFrame:
    """One rank; what is launched runs at once, for 50 ns."""
    rows, work, spans = [], [], {"forward": [], "backward": [], "optimizer": []}
    for step, dids in enumerate(steps):
        for place, did in enumerate(dids):
            launch = ORIGIN + step * WALL_NS + 100 * place
            spans[did.phase].append((launch - 10, launch + 40))
            if did.what in (COPY, GEMM):
                work.append((launch, launch, launch + 50, did.what))
                continue
            rows.append(
                {
                    "rank": 0, "step": step, "kind": did.what, "group": "0,1", "group_size": 2,
                    "bytes": 1 << 20, "unit": did.unit, "start_ns": launch, "end_ns": launch + 50,
                    "launch_start_ns": launch,
                }
            )  # fmt: skip
    collectives = pd.DataFrame(rows).astype({"launch_start_ns": "Int64"})
    times = np.array([row[:3] for row in work], dtype=np.int64)
    begins = ORIGIN + WALL_NS * np.arange(len(steps), dtype=np.int64)
    windows = StepWindows(number=np.arange(len(steps)), begin_ns=begins - 50, end_ns=begins + WALL_NS - 50)
    activity = Activity(
        on_device=True,
        compute=union(intervals(times[:, 1], times[:, 2])),
        waits=EMPTY,
        anonymous_waits=EMPTY,
        copies=EMPTY,
        coverage=EMPTY,
        launched=EMPTY,
        named=NamedWork(
            names=(COPY, GEMM),
            code=np.array([(COPY, GEMM).index(row[3]) for row in work]),
            times=times,
            stream=np.zeros(len(work), dtype=np.int64),
            copies=np.array([row[3] == COPY for row in work]),
            memcpy=np.zeros(len(work), dtype=np.bool_),
        ),
    )
    timeline = RankTimeline(rank=0, host="", steps=windows, host_steps=windows, activity=activity, pings={})
    evidence = PhaseEvidence(
        **{name: np.array(found, dtype=np.int64) for name, found in spans.items() if found}
    )
    return make_pass_table(collectives, [timeline], lambda rank: evidence)


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
    assert (
        passes.loc[passes["number"] == 2, "compute_between_ns"].groupby(passes["unit"]).nunique().eq(1).all()
    )
    # from the end of the last piece to the first of the next gather: of b its forward, of a much more
    between = passes[passes["phase"] == "backward"].groupby("unit")["compute_between_ns"].first()
    assert between["b"] < between["a"]


def test_a_second_gather_is_none_of_the_pieces_of_the_first() -> None:
    one = [*forward("a", "b"), gather("b", "backward"), *backward("a", "b"), *OPTIMIZER]
    assert [n for unit, _, n in numbers(passes_of(one)) if unit == "b"] == [1, 2, 2]
    computed = [*one[:7], Did(GEMM, "", "backward"), *one[7:]]
    assert computed[6] == gather("b", "backward")
    assert [n for unit, _, n in numbers(passes_of(computed)) if unit == "b"] == [1, 2, 3]


TRAINING = [*forward("a", "b"), *backward("a", "b"), *OPTIMIZER]
COUNTED = [("a", "forward", 1), ("b", "forward", 1), ("b", "backward", 2), ("a", "backward", 2)]
LEFT_OUT = [("a", "forward", None), ("b", "forward", None)]


@pytest.mark.parametrize(
    ("before", "after"), [(0, 1), (0, 3), (1, 0), (2, 2)], ids=["behind", "long", "before", "both"]
)
def test_gathers_of_an_evaluation_are_none_of_the_training_step(before: int, after: int) -> None:
    step = [*forward("a", "b") * before, *TRAINING, *forward("a", "b") * after]
    passes = passes_of(step, TRAINING, step)
    expected = [*LEFT_OUT * before, *COUNTED, *LEFT_OUT * after]
    assert numbers(passes) == [*expected, *COUNTED, *expected]
    assert passes[passes["number"].isna()]["micro_batch"].isna().all()


def test_an_evaluation_in_pieces_is_left_out_whole() -> None:
    assert numbers(passes_of([*TRAINING, *forward("a", "b", pieces=2)])) == [
        *COUNTED,
        *[("a", "forward", None)] * 2,
        *[("b", "forward", None)] * 2,
    ]


def test_a_unit_that_a_forward_uses_twice_is_no_evaluation() -> None:
    """An embedding that is the head too: gathered at both ends of the forward."""
    found = numbers(passes_of([*forward("e", "a", "b", "e"), *backward("e", "a", "b", "e"), *OPTIMIZER]))
    assert [number for unit, phase, number in found if unit == "e"] == [1, 2, 3, 4]


def test_micro_batches_are_no_evaluations() -> None:
    found = numbers(passes_of([*forward("a", "b"), *backward("a", "b"), *TRAINING]))
    assert [number for unit, _, number in found if unit == "a"] == [1, 2, 3, 4]
