"""Bytes on the wire, to the byte: psi and how often, per micro-batch; and how large the pieces are."""

from itertools import pairwise

import pytest
import torch
from fast_pairs import pairs_fast
from gradient_helpers import Rank, run_steps

BF16, FP32 = torch.bfloat16, torch.float32
MICRO_BATCHES = 3

#: stage, reduce_each_micro_batch -> psi moved in a micro-batch that is not the last, in the last, in the step
FORMULA = {
    (0, None): (0, 2, 0),
    (0, True): (2, 2, 0),
    (0, False): (0, 2, 0),
    (1, None): (0, 1, 1),
    (1, True): (1, 1, 1),
    (1, False): (0, 1, 1),
    (2, None): (1, 1, 1),
    (2, True): (1, 1, 1),
    (2, False): (0, 1, 1),
    (3, None): (3, 3, 0),
    (3, True): (3, 3, 0),
    (3, False): (2, 3, 0),
}
FACTORS = {"stage and each": list(FORMULA), "constant": (None, 40), "defragment": (False, True)}


def moved_in_a_step(ranks: int, **settings: object) -> tuple[list[int], int]:
    """Bytes of each micro-batch and of the step, on rank 0; and psi."""
    moved: dict[int, list[int]] = {}

    def work(rank: Rank) -> None:
        for _ in range(2):
            seen = [rank.comm.moved.total()]
            rank.optimizer.zero_grad()
            for micro_batch in range(MICRO_BATCHES):
                rank.backward(micro_batch)
                seen.append(rank.comm.moved.total())
            rank.optimizer.step()
            seen.append(rank.comm.moved.total())
            moved[rank.comm.rank] = [after - before for before, after in pairwise(seen)]

    engines = run_steps(ranks, work, micro_batches=MICRO_BATCHES, **settings)
    assert all(moved[0] == other for other in moved.values())
    facts = engines[0].model.facts
    return moved[0], facts.parameters + facts.padding_elements


@pytest.mark.parametrize(
    ("case", "constant", "defragment"),
    [pytest.param(*way, marks=marks) for way, marks in pairs_fast(FACTORS)],
)
def test_every_micro_batch_moves_what_the_formula_says(case, constant, defragment):
    stage, each = case
    moved, psi = moved_in_a_step(
        2, stage=stage, reduce_each_micro_batch=each, constant_buffers=constant, defragment=defragment
    )
    waiting, last, step = FORMULA[case]
    psi_bytes = psi * 4 // 2  # (N - 1) / N with 2 ranks
    assert moved == [factor * psi_bytes for factor in (waiting, waiting, last, step)]


@pytest.mark.parametrize("reduce_dtype", [None, FP32])
@pytest.mark.parametrize("stage", range(4))
def test_pieces_are_small_whole_and_in_one_order_on_all_ranks(stage, reduce_dtype):
    ranks, constant, alignment = 2, 30, 4

    def work(rank: Rank) -> None:
        rank.backward(rank.comm.rank)

    engines = run_steps(
        ranks,
        work,
        stage=stage,
        dtype=BF16,
        reduce_dtype=reduce_dtype,
        constant_buffers=constant,
        alignment=alignment,
    )
    assert engines[0].comm.launched == engines[1].comm.launched
    reductions = [one for one in engines[0].launches() if one.kind in ("all_reduce", "reduce_scatter")]
    assert {one.dtype for one in reductions} == {reduce_dtype or BF16}
    assert max(one.elements for one in reductions) == engines[0].model.facts.constant_buffers == 24
    assert all(one.elements % (ranks * alignment) == 0 for one in reductions)
    order = list(dict.fromkeys(one.unit for one in reductions))
    assert order == ["layers.2", "layers.1", "layers.0", "root"]
    sizes = {unit.name: unit.layout.padded for unit in engines[0].model.units}
    for unit in order:
        assert sum(one.elements for one in reductions if one.unit == unit) == sizes[unit]
    assert [one.unit for one in reductions] == sorted((one.unit for one in reductions), key=order.index)
