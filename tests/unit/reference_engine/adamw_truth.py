"""AdamW written down once more, in float64, from the paper: what every kernel is held against."""

from dataclasses import dataclass

import torch

from zprof.reference_engine.optimizer.adamw import AdamWHyperparameters

NUMBERS = AdamWHyperparameters(learning_rate=1e-2, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1)


@dataclass
class Truth:
    """Loshchilov and Hutter, arXiv 1711.05101, algorithm 2, with the decay times the learning rate."""

    weights: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    steps: int = 0

    def step(self, gradient: torch.Tensor, numbers: AdamWHyperparameters = NUMBERS) -> None:
        """One update with an unscaled gradient."""
        g, n = gradient.double(), numbers
        self.steps += 1
        self.first = n.beta1 * self.first + (1 - n.beta1) * g
        self.second = n.beta2 * self.second + (1 - n.beta2) * g * g
        mean = self.first / (1 - n.beta1**self.steps)
        square = self.second / (1 - n.beta2**self.steps)
        decayed = self.weights * (1 - n.learning_rate * n.weight_decay)
        self.weights = decayed - n.learning_rate * mean / (square.sqrt() + n.eps)


def truth_of(weights: torch.Tensor) -> Truth:
    """Before the first step."""
    start = weights.detach().double()
    return Truth(start, torch.zeros_like(start), torch.zeros_like(start))
