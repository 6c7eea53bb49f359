"""Real gloo ranks: losses against single-process training, bytes against the laws of ZeRO.

The paper (arXiv 1910.02054): state bytes of a rank section 5, elements moved per rank and step section 7,
2 psi for stages 0 to 2 and 3 psi for stage 3, times (N - 1) / N on a ring.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks
from engine_reference import mixed_precision_losses, reference_losses
from optional_model import trained_reference

from zprof.reference_engine.program.gpt import GPTConfig

pytestmark = pytest.mark.ranks

SIZES = {"layers": 3, "hidden": 32, "heads": 2, "vocabulary": 61, "context": 16}
TIED = SIZES | {"tied": True}
STEPS, BATCH = 20, 8
LINK = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-4}
OPTIONAL_STEPS = 5
RANKS = (1, pytest.param(2, marks=pytest.mark.slow), 4)
STAGES = range(4)
DTYPES = ("float32", "bfloat16")

FP32_TOLERANCE = 1e-5
#: Half of a bfloat16's last place (8 bits: 2^-9) is what a gradient may be off by when its parts are added
#: in another order.  AdamW divides the size of a gradient out, so that an update is off by about as much,
#: relative to itself; the losses of 20 such steps stay within the same share of the loss.
BF16_TOLERANCE = 2.0**-9


def case(*, gpt: dict[str, Any] = SIZES, link: dict[str, float] | None = None, **zero: Any) -> dict[str, Any]:
    return {"zero": zero, "gpt": gpt, "steps": STEPS, "batch": BATCH, "link": link}


def cases(ranks: int) -> dict[str, Any]:
    table = {f"{stage} {dtype}": case(stage=stage, dtype=dtype) for stage in STAGES for dtype in DTYPES}
    if ranks > 1:
        for stage in STAGES:
            table[f"{stage} optional"] = {
                "kind": "optional",
                "zero": {"stage": stage},
                "steps": OPTIONAL_STEPS,
            }
    if ranks == 2:
        for stage in STAGES:
            table[f"{stage} modelled"] = case(stage=stage, link=LINK)
            table[f"{stage} tied"] = case(stage=stage, gpt=TIED)
            table[f"{stage} no overlap"] = case(stage=stage, overlap_reduce=False, overlap_gather=False)
        for depth in (0, 2):
            prefetch = {"forward_prefetch": depth, "backward_prefetch": depth}
            table[f"3 prefetch {depth}"] = case(stage=3, **prefetch)
            table[f"3 prefetch {depth} modelled"] = case(stage=3, link=LINK, **prefetch)
    return table


Seen = Callable[[int, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each of N ranks saw of a case; all cases of N ranks run in one start."""

    @cache
    def run(ranks: int) -> list[dict[str, Any]]:
        ended = run_ranks(cases(ranks), ranks, tmp_path_factory.mktemp(f"ranks{ranks}"), timeout_s=240)
        assert [rank.code for rank in ended] == [0] * ranks, [rank.error for rank in ended]
        return [rank.results for rank in ended]

    return lambda ranks, name: [results[name] for results in run(ranks)]


@pytest.fixture(autouse=True, scope="module")
def _one_thread_as_a_rank_has() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def fp32_reference(tied: bool = False) -> list[float]:
    return reference_losses(GPTConfig(**(TIED if tied else SIZES)), steps=STEPS, batch=BATCH)


@cache
def bf16_reference(slices: int) -> list[float]:
    return mixed_precision_losses(GPTConfig(**SIZES), steps=STEPS, batch=BATCH, slices=slices)


def test_the_reference_learns_so_that_equal_losses_mean_something():
    losses = fp32_reference()
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("stage", STAGES)
def test_fp32_losses_equal_single_process_adamw(seen: Seen, ranks: int, stage: int):
    for rank in seen(ranks, f"{stage} float32"):
        assert rank["losses"] == pytest.approx(fp32_reference(), rel=FP32_TOLERANCE)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("stage", STAGES)
def test_bf16_losses_equal_single_process_mixed_precision(seen: Seen, ranks: int, stage: int):
    for rank in seen(ranks, f"{stage} bfloat16"):
        assert rank["losses"] == pytest.approx(bf16_reference(1), rel=BF16_TOLERANCE)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_bf16_losses_are_those_of_the_same_order_of_summation(seen: Seen, ranks: int, stage: int):
    # Two numbers have only one order, so nothing but fp32 arithmetic is left to differ.
    for rank in seen(ranks, f"{stage} bfloat16"):
        assert rank["losses"] == pytest.approx(bf16_reference(ranks), rel=FP32_TOLERANCE)


VARIANTS = [(stage, variant) for stage in STAGES for variant in ("modelled", "tied", "no overlap")]
VARIANTS += [(3, f"prefetch {depth}{link}") for depth in (0, 2) for link in ("", " modelled")]


@pytest.mark.parametrize(("stage", "variant"), VARIANTS)
def test_transport_overlap_prefetch_and_tying_change_no_number(seen: Seen, stage: int, variant: str):
    for rank in seen(2, f"{stage} {variant}"):
        assert rank["losses"] == pytest.approx(fp32_reference(variant == "tied"), rel=FP32_TOLERANCE)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_ranks_may_leave_out_different_parameters(seen: Seen, stage: int, ranks: int):
    model = trained_reference(ranks, OPTIONAL_STEPS)
    for rank in seen(ranks, f"{stage} optional"):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(torch.tensor(rank["weights"][name]), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_gradients_are_the_mean_over_the_ranks(seen: Seen, stage: int, ranks: int):
    # AdamW divides the size of a gradient out: losses alone would not tell a sum from a mean.
    gradients = [parameter.grad for parameter in trained_reference(ranks, OPTIONAL_STEPS).parameters()]
    square = sum(float(gradient.double().square().sum()) for gradient in gradients)
    owned = [rank["square"] for rank in seen(ranks, f"{stage} optional")]
    if stage == 0:
        assert owned == pytest.approx([square] * ranks, rel=1e-5)
    else:
        assert sum(owned) == pytest.approx(square, rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("stage", STAGES)
def test_every_rank_keeps_what_the_law_says_to_the_byte(seen: Seen, stage: int, ranks: int, dtype: str):
    element, optimizer = (4, 8) if dtype == "float32" else (2, 12)
    for rank in seen(ranks, f"{stage} {dtype}"):
        facts = rank["facts"]
        psi = facts["parameters"] + facts["padding_elements"]
        share = [1 / ranks if stage >= first else 1 for first in (3, 2, 1)]
        law = [
            element * psi * share[0],
            element * psi * share[1],
            optimizer * psi * share[2] + 4 * facts["step_counters"],
        ]
        built, *after_steps = rank["states"]
        assert built == [law[0], 0 if stage >= 2 else law[1], law[2]]  # gradient shards come with a backward
        assert after_steps == [law] * STEPS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("stage", STAGES)
def test_every_step_moves_what_the_law_says_to_the_byte(seen: Seen, stage: int, ranks: int, dtype: str):
    element = 4 if dtype == "float32" else 2
    for rank in seen(ranks, f"{stage} {dtype}"):
        facts = rank["facts"]
        psi = facts["parameters"] + facts["padding_elements"]
        law = (3 if stage == 3 else 2) * psi * element * (ranks - 1) // ranks
        totals = [sum(moved.values()) for moved in rank["moved"]]
        steps = [after - before for before, after in pairwise(totals)]
        assert steps == [law] * STEPS


@pytest.mark.parametrize(
    ("stage", "kinds"),
    [
        (0, {"all_reduce"}),
        (1, {"reduce_scatter", "all_gather"}),
        (2, {"reduce_scatter", "all_gather"}),
        (3, {"reduce_scatter", "all_gather"}),
    ],
)
def test_the_kinds_are_those_of_the_stage(seen: Seen, stage: int, kinds: set[str]):
    moved = seen(2, f"{stage} float32")[0]["moved"][-1]
    assert {kind for kind, count in moved.items() if count} - {"broadcast"} == kinds


def test_prefetch_moves_no_byte_more(seen: Seen):
    moved = [seen(2, f"3 {variant}")[0]["moved"] for variant in ("prefetch 0", "float32", "prefetch 2")]
    assert moved[0] == moved[1] == moved[2]
