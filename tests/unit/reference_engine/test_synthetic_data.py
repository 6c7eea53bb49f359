import pytest
import torch

from zprof.reference_engine.program.data import make_global_batch, take_rank_slice


def batch(step: int = 0, seed: int = 0) -> torch.Tensor:
    return make_global_batch(seed=seed, step=step, batch=8, time=16, vocabulary=32)


def test_a_batch_is_the_same_for_the_same_seed_and_step_only():
    assert torch.equal(batch(), batch())
    assert not torch.equal(batch(), batch(step=1))
    assert not torch.equal(batch(), batch(seed=1))
    assert int(batch().min()) >= 0
    assert int(batch().max()) < 32


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_ranks_slices_are_the_global_batch(ranks):
    slices = [take_rank_slice(batch(), rank=rank, ranks=ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat(slices), batch())


def test_most_tokens_follow_from_the_one_before():
    tokens = batch()
    follows = tokens[:, 1:] == (5 * tokens[:, :-1] + 7) % 32
    assert 0.8 < follows.float().mean() < 1
