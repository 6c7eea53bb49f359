"""Parallel layers against the whole ones: results, all gradients, weights and what is exchanged."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from gradient_helpers import MODEL_LOCK
from thread_comm import ThreadComm, launches, on_ranks
from torch import nn

from zprof.reference_engine.program.gpt import GPT, Attention, GPTConfig
from zprof.reference_engine.tensor_parallel import (
    SPLIT_MARK,
    ColumnParallelLinear,
    GatheredColumns,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelLoss,
)

SIZES = GPTConfig(layers=2, hidden=16, heads=4, vocabulary=24, context=6)
RANKS = (2, 4)
WIDE = 12


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def own(mp: ThreadComm, size: int) -> slice:
    return slice(mp.rank * size // mp.world_size, (mp.rank + 1) * size // mp.world_size)


def backward(layer: nn.Module, x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the gradient of the input."""
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    (y * weights).sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize("ranks", RANKS)
def test_columns_and_rows_are_slices_of_the_whole(ranks: int):
    torch.manual_seed(1)
    first, second = nn.Linear(8, WIDE), nn.Linear(WIDE, 8)
    x, wide, narrow = data(2, 3, 8), data(2, 3, WIDE, seed=2), data(2, 3, 8, seed=3)
    of_columns, of_rows = backward(first, x, wide), backward(second, wide, narrow)

    def work(mp: ThreadComm) -> None:
        mine = own(mp, WIDE)
        columns = ColumnParallelLinear(deepcopy(first), mp, "columns")
        y, gradient = backward(columns, x, wide[..., mine])
        close(y, of_columns[0][..., mine])
        close(gradient, of_columns[1])
        close(columns.weight.grad, first.weight.grad[mine])
        close(columns.bias.grad, first.bias.grad[mine])
        rows = RowParallelLinear(deepcopy(second), mp, "rows")
        y, gradient = backward(rows, wide[..., mine], narrow)
        close(y, of_rows[0])
        close(gradient, of_rows[1][..., mine])
        close(rows.weight.grad, second.weight.grad[:, mine])
        close(rows.bias.grad, second.bias.grad)
        # columns in the backward alone, rows in the forward alone
        assert launches(mp) == [("all_reduce", "columns"), ("all_reduce", "rows")]

    on_ranks(ranks, work)


def test_the_heads_of_attention_are_not_mixed_up():
    # A split that ignored the thirds would give rank 0 queries and half of the keys.
    torch.manual_seed(0)
    attention = Attention(SIZES)
    part = on_ranks(2, lambda mp: ColumnParallelLinear(attention.query_key_value, mp, "qkv", parts=3))[1]
    whole = attention.query_key_value.weight.detach()
    assert torch.equal(part.weight, torch.cat([whole[8:16], whole[24:32], whole[40:48]]))


@pytest.mark.parametrize("ranks", RANKS)
def test_embedding_rows_are_found_wherever_they_are_and_columns_gathered(ranks: int):
    torch.manual_seed(0)
    whole = nn.Embedding(24, WIDE)
    tokens = torch.randint(24, (3, 5), generator=torch.Generator().manual_seed(3))
    weights = data(3, 5, WIDE)
    expected = whole(tokens)
    (expected * weights).sum().backward()

    def work(mp: ThreadComm) -> None:
        layer = VocabParallelEmbedding(deepcopy(whole), mp, "embedding")
        y = layer(tokens)
        assert torch.equal(y, expected)  # bit by bit: zeros are added
        (y * weights).sum().backward()
        close(layer.weight.grad, whole.weight.grad[own(mp, 24)])
        mine = own(mp, WIDE)
        y, gradient = backward(GatheredColumns(mp, "logits"), expected[..., mine], weights)
        assert torch.equal(y, expected)
        assert torch.equal(gradient, weights[..., mine])

    on_ranks(ranks, work)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 300.0), (torch.bfloat16, 1.0)])
@pytest.mark.parametrize("ranks", RANKS)
def test_loss_of_split_logits_is_cross_entropy(ranks: int, dtype: torch.dtype, scale: float):
    logits = (data(10, 24) * scale).to(dtype).requires_grad_()
    targets = torch.randint(24, (10,), generator=torch.Generator().manual_seed(3))
    expected = F.cross_entropy(logits.float(), targets)
    (expected * 3).backward()

    def work(mp: ThreadComm) -> None:
        mine = logits.detach()[:, own(mp, 24)].clone().requires_grad_()
        loss = VocabParallelLoss(mp, "loss")(mine, targets)
        (loss * 3).backward()
        close(loss, expected)
        close(mine.grad, logits.grad[:, own(mp, 24)])

    on_ranks(ranks, work)


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_the_whole_model_has_the_logits_and_gradients_of_the_plain_one(tied: bool):
    torch.manual_seed(0)
    config = GPTConfig(layers=2, hidden=16, heads=4, vocabulary=24, context=6, tied=tied)
    plain = GPT(config)
    batch = torch.randint(24, (3, 7), generator=torch.Generator().manual_seed(3))
    plain(batch[:, :-1], batch[:, 1:]).backward()

    def work(mp: ThreadComm) -> dict[str, nn.Parameter]:
        with MODEL_LOCK:
            torch.manual_seed(0)
            model = GPT(config, mp)
        model(batch[:, :-1], batch[:, 1:]).backward()
        close(model(batch[:, :-1]), plain(batch[:, :-1]))
        return dict(model.named_parameters())

    ranks = on_ranks(4, work)
    for name, expected in plain.named_parameters():
        parameters = [rank[name] for rank in ranks]
        if hasattr(parameters[0], SPLIT_MARK):
            assert sum(parameter.numel() for parameter in parameters) == expected.numel()
            squares = sum(float(parameter.grad.square().sum()) for parameter in parameters)
            assert squares == pytest.approx(float(expected.grad.square().sum()), rel=1e-4)
        else:
            # Not only close: ranks that drift apart by a bit a step would be different models in the end.
            assert all(torch.equal(parameter.grad, parameters[0].grad) for parameter in parameters)
            close(parameters[0].grad, expected.grad)


def test_weights_are_slices_of_the_plain_model_with_the_same_seed_and_the_rest_is_freed():
    torch.manual_seed(0)
    plain = GPT(SIZES)
    expand = plain.blocks[1].expand.weight

    for rank, mp in enumerate(on_ranks(4, lambda mp: mp)):
        torch.manual_seed(0)
        model = GPT(SIZES, mp)
        part = model.blocks[1].expand.weight
        assert torch.equal(part, expand[rank * 16 : (rank + 1) * 16])
        assert part.untyped_storage().nbytes() == expand.untyped_storage().nbytes() // 4


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda mp: GPT(GPTConfig(layers=1, hidden=16, heads=2, vocabulary=24, context=6), mp), "heads"),
        (lambda mp: ColumnParallelLinear(nn.Linear(4, 9), mp, "a", parts=3), "output features of a is 3"),
        (lambda mp: RowParallelLinear(nn.Linear(5, 4), mp, "b"), "input features of b is 5"),
        (lambda mp: VocabParallelEmbedding(nn.Embedding(5, 4), mp, "c"), "rows of c is 5"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(make, word: str):
    def work(mp: ThreadComm) -> None:
        with pytest.raises(ValueError, match=f"^{word}"):
            make(mp)

    on_ranks(4, work)
