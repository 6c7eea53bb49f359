"""Parallel layers against the whole ones: results, all gradients, weights and what is exchanged."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
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
HIDDEN, WIDE = 8, 12


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(fan_in: int, fan_out: int) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(fan_in, fan_out)


@pytest.mark.parametrize("ranks", RANKS)
def test_columns_are_slices_of_the_whole_and_the_input_gradient_is_the_sum(ranks: int):
    whole, x, weights = linear(HIDDEN, WIDE), data(2, 3, HIDDEN).requires_grad_(), data(2, 3, WIDE, seed=2)
    expected = whole(x)
    (expected * weights).sum().backward()

    def work(mp: ThreadComm) -> None:
        layer = ColumnParallelLinear(deepcopy(whole), mp, "layer")
        own = slice(mp.rank * WIDE // ranks, (mp.rank + 1) * WIDE // ranks)
        mine = x.detach().clone().requires_grad_()
        y = layer(mine)
        (y * weights[..., own]).sum().backward()
        close(y, expected[..., own])
        close(mine.grad, x.grad)
        close(layer.weight.grad, whole.weight.grad[own])
        close(layer.bias.grad, whole.bias.grad[own])
        assert launches(mp) == [("all_reduce", "layer")]  # in the backward alone

    on_ranks(ranks, work)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ranks", RANKS)
def test_rows_add_up_to_the_whole_with_the_bias_once(ranks: int, bias: bool):
    whole, x, weights = linear(WIDE, HIDDEN), data(2, 3, WIDE).requires_grad_(), data(2, 3, HIDDEN, seed=2)
    whole.bias = whole.bias if bias else None
    expected = whole(x)
    (expected * weights).sum().backward()

    def work(mp: ThreadComm) -> None:
        layer = RowParallelLinear(deepcopy(whole), mp, "layer")
        layer.zero_grad()
        own = slice(mp.rank * WIDE // ranks, (mp.rank + 1) * WIDE // ranks)
        mine = x.detach()[..., own].clone().requires_grad_()
        y = layer(mine)
        assert launches(mp) == [("all_reduce", "layer")]  # in the forward alone
        (y * weights).sum().backward()
        close(y, expected)
        close(mine.grad, x.grad[..., own])
        close(layer.weight.grad, whole.weight.grad[:, own])
        assert launches(mp) == [("all_reduce", "layer")]
        if bias:
            close(layer.bias.grad, whole.bias.grad)

    on_ranks(ranks, work)


def test_the_heads_of_attention_are_not_mixed_up():
    # A split that ignored the thirds would give rank 0 queries and half of the keys.
    torch.manual_seed(0)
    attention = Attention(SIZES)
    part = on_ranks(2, lambda mp: ColumnParallelLinear(attention.query_key_value, mp, "qkv", parts=3))[1]
    whole = attention.query_key_value.weight.detach()
    assert torch.equal(part.weight, torch.cat([whole[8:16], whole[24:32], whole[40:48]]))


@pytest.mark.parametrize("ranks", RANKS)
def test_embedding_rows_are_found_wherever_they_are(ranks: int):
    torch.manual_seed(0)
    whole = nn.Embedding(24, HIDDEN)
    tokens = torch.randint(24, (3, 5), generator=torch.Generator().manual_seed(3))
    weights = data(3, 5, HIDDEN)
    expected = whole(tokens)
    (expected * weights).sum().backward()

    def work(mp: ThreadComm) -> None:
        layer = VocabParallelEmbedding(deepcopy(whole), mp, "embedding")
        y = layer(tokens)
        assert torch.equal(y, expected)  # bit by bit: zeros are added
        (y * weights).sum().backward()
        own = slice(mp.rank * 24 // ranks, (mp.rank + 1) * 24 // ranks)
        close(layer.weight.grad, whole.weight.grad[own])

    on_ranks(ranks, work)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 300.0), (torch.bfloat16, 1.0)])
@pytest.mark.parametrize("ranks", RANKS)
def test_loss_of_split_logits_is_cross_entropy(ranks: int, dtype: torch.dtype, scale: float):
    logits = (data(10, 24) * scale).to(dtype).requires_grad_()
    targets = torch.randint(24, (10,), generator=torch.Generator().manual_seed(3))
    expected = F.cross_entropy(logits.float(), targets)
    (expected * 3).backward()

    def work(mp: ThreadComm) -> None:
        own = slice(mp.rank * 24 // ranks, (mp.rank + 1) * 24 // ranks)
        mine = logits.detach()[:, own].clone().requires_grad_()
        loss = VocabParallelLoss(mp, "loss")(mine, targets)
        (loss * 3).backward()
        close(loss, expected)
        close(mine.grad, logits.grad[:, own])
        assert launches(mp) == [("all_gather", "loss")]
        assert mp.launched[0].elements == ranks * 2 * 10

    on_ranks(ranks, work)


@pytest.mark.parametrize("ranks", RANKS)
def test_columns_can_be_gathered(ranks: int):
    whole, weights = data(2, 3, WIDE).requires_grad_(), data(2, 3, WIDE, seed=2)

    def work(mp: ThreadComm) -> None:
        own = slice(mp.rank * WIDE // ranks, (mp.rank + 1) * WIDE // ranks)
        mine = whole.detach()[..., own].clone().requires_grad_()
        y = GatheredColumns(mp, "logits")(mine)
        (y * weights).sum().backward()
        assert torch.equal(y, whole)
        assert torch.equal(mine.grad, weights[..., own])

    on_ranks(ranks, work)


def parts_of(whole: GPT, mp: ThreadComm) -> GPT:
    """A rank's part of the model; made here because the seed belongs to the process, not to the thread."""
    part = deepcopy(whole)
    part._split(mp)
    return part


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_whole_model_has_the_loss_logits_and_gradients_of_the_plain_one(ranks: int, tied: bool):
    config = GPTConfig(layers=2, hidden=16, heads=4, vocabulary=24, context=6, tied=tied)
    torch.manual_seed(0)
    plain = GPT(config)
    batch = torch.randint(24, (3, 7), generator=torch.Generator().manual_seed(3))
    loss = plain(batch[:, :-1], batch[:, 1:])
    untouched = deepcopy(plain)
    loss.backward()

    def work(mp: ThreadComm) -> dict[str, nn.Parameter]:
        model = parts_of(untouched, mp)
        mine = model(batch[:, :-1], batch[:, 1:])
        mine.backward()
        close(mine, loss)
        close(model(batch[:, :-1]), plain(batch[:, :-1]))
        return dict(model.named_parameters())

    for name, parameters in zip_by_name(on_ranks(ranks, work)):
        expected = plain.get_parameter(name)
        assert all(
            hasattr(parameter, SPLIT_MARK) == hasattr(parameters[0], SPLIT_MARK) for parameter in parameters
        )
        if not hasattr(parameters[0], SPLIT_MARK):
            # Not only close: ranks that drift apart by a bit a step would be different models in the end.
            assert all(torch.equal(parameter.grad, parameters[0].grad) for parameter in parameters)
            close(parameters[0].grad, expected.grad)
        else:
            assert sum(parameter.numel() for parameter in parameters) == expected.numel()
            squares = sum(float(parameter.grad.square().sum()) for parameter in parameters)
            assert squares == pytest.approx(float(expected.grad.square().sum()), rel=1e-4)


def zip_by_name(ranks: list[dict[str, nn.Parameter]]) -> list[tuple[str, list[nn.Parameter]]]:
    return [(name, [rank[name] for rank in ranks]) for name in ranks[0]]


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
        (lambda mp: GPT(GPTConfig(layers=1, hidden=16, heads=4, vocabulary=26, context=6), mp), "vocabulary"),
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
