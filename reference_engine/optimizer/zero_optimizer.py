"""AdamW on this rank's part of every unit.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

State in bytes per owned element: m and v, 8; with low-precision parameters also the fp32 master weights, 12.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.adamw import adamw

from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.gradients.reducer import GradientReducer
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.units.flat_unit import FlatUnit


class ZeroOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose parameters are flat shards, one for each trainable unit.

    ``param_groups`` and ``state`` (``exp_avg``, ``exp_avg_sq``, ``step``) are where tools expect them, and
    a change of a group's numbers holds from the next step on.
    """

    def __init__(
        self, gradients: Mapping[FlatUnit, UnitGradients], reducer: GradientReducer, config: ZeroConfig
    ) -> None:
        """``gradients`` stands in forward order."""
        self._units = tuple(gradients)
        self._gradients = gradients
        self._reducer = reducer
        self._overlap_gather = config.overlap_gather
        defaults = {
            "lr": config.learning_rate,
            "betas": config.betas,
            "eps": config.eps,
            "weight_decay": config.weight_decay,
        }
        super().__init__([_weights(unit) for unit in self._units], defaults)
        for unit in self._units:
            self._make_state(unit)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's part with the reduced gradients and share it with the other ranks.

        Raises:
            RuntimeError: no backward() came before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._reducer.reduced:
            raise RuntimeError("there are no reduced gradients: call backward() before step()")
        for unit in self._units:
            self._update(unit)
        if not self._overlap_gather:
            for unit in self._units:
                unit.wait()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set gradients to zero in place: their memory is persistent, whatever ``set_to_none`` says."""
        self._reducer.zero()

    def scalar_state(self) -> dict[str, Any]:
        """Steps taken and the numbers of every group, as plain numbers (waits for the device)."""
        steps = {int(self.state[_weights(unit)]["step"]) for unit in self._units}
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.param_groups
        ]
        return {"step": max(steps), "groups": groups}

    def load_scalar_state(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`scalar_state` gave, on every rank."""
        for unit in self._units:
            self.state[_weights(unit)]["step"].fill_(state["step"])
        for group, numbers in zip(self.param_groups, state["groups"], strict=True):
            group.update(numbers)

    def _make_state(self, unit: FlatUnit) -> None:
        weights = _weights(unit)
        self.state[weights] = {
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
            "exp_avg": torch.zeros_like(weights.detach()),
            "exp_avg_sq": torch.zeros_like(weights.detach()),
        }
        owned = self._gradients[unit].owned
        if owned.dtype == weights.dtype:
            weights.grad = owned

    def _update(self, unit: FlatUnit) -> None:
        unit.wait()  # of the last step's gather, if no forward came since
        weights = _weights(unit)
        owned = self._gradients[unit].owned
        if owned.dtype == weights.dtype:
            self._adamw(weights, owned)
        else:
            weights.grad = owned.to(weights.dtype)  # one unit at a time, freed before the next
            self._adamw(weights, weights.grad)
            weights.grad = None
        unit.store_weights()
        if unit.policy.gathers_after_step:
            unit.publish()

    def _adamw(self, weights: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        group = self.param_groups[0]
        state = self.state[weights]
        adamw(
            [weights],
            [gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )


def _weights(unit: FlatUnit) -> torch.nn.Parameter:
    assert unit.weights is not None  # the optimizer is given trainable units only
    return unit.weights
