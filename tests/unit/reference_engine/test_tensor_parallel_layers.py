"""Parallel layers against the whole ones: results, all gradients, weights and what is exchanged."""

import pytest
import torch
import torch.nn.functional as F
from gradient_helpers import MODEL_LOCK
from thread_comm import ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.tensor_parallel import (
    SPLIT_MARK,
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelLoss,
)

SIZES = GPTConfig(layers=2, hidden=16, heads=4, vocabulary=24, context=6)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 300.0), (torch.bfloat16, 1.0)])
def test_loss_of_split_logits_is_cross_entropy(dtype: torch.dtype, scale: float):
    logits = (torch.randn(10, 24) * scale).to(dtype).requires_grad_()  # 300: exp overflows
    targets = torch.randint(24, (10,))
    expected = F.cross_entropy(logits.float(), targets)
    expected.backward()

    def work(mp: ThreadComm) -> None:
        own = slice(mp.rank * 6, (mp.rank + 1) * 6)
        mine = logits.detach()[:, own].clone().requires_grad_()
        loss = VocabParallelLoss(mp, "loss")(mine, targets)
        loss.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(mine.grad, logits.grad[:, own])

    on_ranks(4, work)


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
        torch.testing.assert_close(model(batch[:, :-1]), plain(batch[:, :-1]))
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
            torch.testing.assert_close(parameters[0].grad, expected.grad)


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
