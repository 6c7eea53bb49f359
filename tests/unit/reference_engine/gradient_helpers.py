"""A model with awkward gradients, its mean gradient without an engine, and what an engine made of it."""

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from thread_comm import Launched, ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero

MODEL_LOCK = threading.Lock()
WIDTH = 5
LAYERS = 3
#: A step with these changes no weight, and leaves the gradient in the first moment.
ONLY_GRADIENTS = {"learning_rate": 0.0, "weight_decay": 0.0, "betas": (0.0, 0.999)}


class RaggedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scaled: bool) -> torch.Tensor:
        return x + torch.tanh(self.linear(x * self.scale if scaled else x))


class Ragged(nn.Module):
    """Root gradients come first and last, one never; each call leaves another layer's scale out."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.rand(WIDTH))
        self.layers = nn.ModuleList(RaggedLayer() for _ in range(layers))
        self.never = nn.Parameter(torch.rand(7))
        self.after = nn.Parameter(torch.rand(WIDTH, 3))

    def forward(self, x: torch.Tensor, left_out: int) -> torch.Tensor:
        x = x * self.before
        for index, layer in enumerate(self.layers):
            x = layer(x, index != left_out)
        return (x @ self.after).square().mean()


def ragged(layers: int = LAYERS) -> Ragged:
    torch.manual_seed(1)
    return Ragged(layers)


def loss_of_micro_batch(model: nn.Module, rank: int, micro_batch: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * rank + micro_batch)
    x = torch.randn(2, WIDTH, generator=generator).to(dtype)
    return model(x, (rank + 2 * micro_batch) % (LAYERS + 1))


def mean_gradients(
    dtype: torch.dtype, *, ranks: int, micro_batches: int, layers: int = LAYERS
) -> dict[str, torch.Tensor]:
    """By parameter, in float64; each rank's and micro-batch's gradient is made in ``dtype`` on its own."""
    model = ragged(layers).to(dtype)
    total = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in model.named_parameters()}
    for rank in range(ranks):
        for micro_batch in range(micro_batches):
            one = copy.deepcopy(model)
            loss_of_micro_batch(one, rank, micro_batch, dtype).backward()
            for name, parameter in one.named_parameters():
                if parameter.grad is not None:
                    total[name] += parameter.grad.double() / (ranks * micro_batches)
    return total


@dataclass
class Rank:
    """One rank's engine and what it saw."""

    model: ZeroModel
    optimizer: ZeroOptimizer
    comm: ThreadComm

    def moments(self) -> list[tuple[object, torch.Tensor]]:
        """Of every unit, the first moments of what this rank owns."""
        return [(unit, self.optimizer.state[unit.weights]["exp_avg"]) for unit in self.model.units]

    def backward(self, micro_batch: int) -> None:
        loss_of_micro_batch(self.model, self.comm.rank, micro_batch, self.dtype).backward()

    @property
    def dtype(self) -> torch.dtype:
        return self.model.units[0].full.dtype

    def launches(self) -> list[Launched]:
        return [one for one in self.comm.launched if one.kind != "broadcast"]


def make_rank(comm: ThreadComm, layers: int = LAYERS, **settings: object) -> Rank:
    with MODEL_LOCK:  # the generator that seeds the weights is one for all threads
        module = ragged(layers)
    model, optimizer = zero(module, ZeroConfig(**settings), comm)  # type: ignore[arg-type]
    return Rank(model, optimizer, comm)


def run_steps(
    ranks: int, work: Callable[[Rank], None], layers: int = LAYERS, **settings: object
) -> list[Rank]:
    """An engine on every rank, after ``work``."""

    def run(comm: ThreadComm) -> Rank:
        rank = make_rank(comm, layers, **settings)
        work(rank)
        return rank

    return on_ranks(ranks, run)


def gathered_gradients(ranks: list[Rank], stage: int) -> dict[str, torch.Tensor]:
    """By parameter, in float64: what the optimizers read in their last step, with ``ONLY_GRADIENTS``."""
    found = {}
    for pairs in zip(*(rank.moments() for rank in ranks), strict=True):
        unit = pairs[0][0]
        owned = [moment for _, moment in pairs]
        flat = owned[0] if stage == 0 else torch.cat(owned)
        if stage == 0:
            assert all(torch.equal(other, flat) for other in owned)
        assert not flat[unit.layout.numel :].any(), "padding"  # type: ignore[attr-defined]
        for slot in unit.layout.slots:  # type: ignore[attr-defined]
            found[slot.name] = flat[slot.offset : slot.offset + slot.numel].view(slot.shape).double()
    return found
