"""AdamW on this rank's part of every unit.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

State in bytes per owned element: m and v, 8; with low-precision parameters also the fp32 master weights, 12.
With a loss scale 8 bytes more, and where the norm is taken 8 that keep the last one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from zprof.reference_engine.comm import Comm
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.gradients.reducer import GradientReducer
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.optimizer.loss_scale import DynamicLossScale
from zprof.reference_engine.optimizer.norm import SquaresOverRanks, control_of, norm_of
from zprof.reference_engine.optimizer.update import AdamWNumbers, Shard, StepControl, Update
from zprof.reference_engine.units.flat_unit import FlatUnit


class ZeroOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose parameters are flat shards, one for each trainable unit.

    ``param_groups`` and ``state`` (``exp_avg``, ``exp_avg_sq``, ``step``) are where tools expect them, and
    a change of a group's numbers holds from the next step on.

    With ``clip_norm``, or in float16, each step takes the norm of all gradients, at the price of 8 bytes
    all-reduced in each group.  Where it is inf or nan, in any dtype, the step changes nothing on any rank and
    is not counted.  Without the two there is no such pass, and what is inf or nan goes into the weights, as
    with torch's optimizers.  The host reads none of it.

    ``gradient_norm``  of the last step, unscaled and before clipping, a float64 tensor on the device; None
                       before the first step and where no norm is taken
    """

    def __init__(
        self,
        gradients: Mapping[FlatUnit, UnitGradients],
        reducer: GradientReducer,
        config: ZeroConfig,
        *,
        update: Update,
        comm: Comm,
        mp: Comm | None = None,
        loss_scale: DynamicLossScale | None = None,
    ) -> None:
        """``gradients`` stands in forward order; ``mp`` is the tensor-parallel group."""
        self._units = tuple(gradients)
        self._gradients = gradients
        self._reducer = reducer
        self._update = update
        self._loss_scale = loss_scale
        self._clip_norm = config.clip_norm
        self._micro_batches = config.micro_batches
        self._overlap_gather = config.overlap_gather
        self._squares: SquaresOverRanks | None = None
        if config.clip_norm is not None or loss_scale is not None:
            self._squares = SquaresOverRanks(gradients, update, comm=comm, mp=mp)
        self.gradient_norm: torch.Tensor | None = None
        defaults = {
            "lr": config.learning_rate,
            "betas": config.betas,
            "eps": config.eps,
            "weight_decay": config.weight_decay,
            "fused": True,  # by this torch loads the step counts to the device, in float32
        }
        super().__init__([_weights(unit) for unit in self._units], defaults)
        for unit in self._units:
            self._make_state(unit)

    @property
    def loss_scale(self) -> torch.Tensor | None:
        """What the next backward multiplies gradients by, on the device; None where it does not."""
        return None if self._loss_scale is None else self._loss_scale.value

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's part with the reduced gradients and share it with the other ranks.

        Raises:
            RuntimeError: backward() was not called before, or not for every micro-batch.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_reduced()
        control = self._control()
        self._count_step(control)
        for unit in self._units:
            self._update_unit(unit, control)
        if self._loss_scale is not None and control is not None:
            self._loss_scale.update(control.found_inf)
        if not self._overlap_gather:
            for unit in self._units:
                unit.wait()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let gradients count as zero.  Whole ones keep their memory, shards only with MD."""
        self._reducer.zero()

    def scalar_state(self) -> dict[str, Any]:
        """Steps taken and the numbers of every group, as plain numbers (waits for the device)."""
        steps = {int(self.state[_weights(unit)]["step"]) for unit in self._units}
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.param_groups
        ]
        scale = None if self._loss_scale is None else self._loss_scale.numbers()
        return {"step": max(steps), "groups": groups, "loss_scale": scale}

    def load_scalar_state(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`scalar_state` gave, on every rank."""
        for unit in self._units:
            self.state[_weights(unit)]["step"].fill_(state["step"])
        for group, numbers in zip(self.param_groups, state["groups"], strict=True):
            group.update(numbers)
        if self._loss_scale is not None and state.get("loss_scale") is not None:
            self._loss_scale.set(state["loss_scale"])

    def state_dict(self) -> dict[str, Any]:
        """Torch's, of this rank's part, and the loss scale as numbers (waits for the device)."""
        state = super().state_dict()
        if self._loss_scale is not None:
            state["loss_scale"] = self._loss_scale.numbers()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave on the same rank of as many; the weights are not in it."""
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        if self._loss_scale is not None and "loss_scale" in state_dict:
            self._loss_scale.set(state_dict["loss_scale"])

    def _make_state(self, unit: FlatUnit) -> None:
        weights = _weights(unit)
        self.state[weights] = {
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
            "exp_avg": torch.zeros_like(weights.detach()),
            "exp_avg_sq": torch.zeros_like(weights.detach()),
        }
        if not unit.policy.shard_gradients and unit.full.dtype == weights.dtype:
            weights.grad = self._gradients[unit].owned  # of a sharded gradient the shard takes care itself

    def _check_reduced(self) -> None:
        if self._reducer.reduced:
            return
        missing = self._reducer.missing_backwards
        if missing == 0:
            raise RuntimeError(
                "a backward() was broken off: call zero_grad(), and backward() again, before step()"
            )
        raise RuntimeError(
            f"{missing} of the step's {self._micro_batches} backward() calls are missing: call backward() "
            "for every micro-batch before step()"
        )

    def _control(self) -> StepControl | None:
        if self._squares is None:
            return None
        self.gradient_norm = norm_of(self._squares.sum(), self.loss_scale)
        return control_of(self.gradient_norm, self.loss_scale, self._clip_norm)

    def _count_step(self, control: StepControl | None) -> None:
        counts = [self.state[_weights(unit)]["step"] for unit in self._units]
        if control is None:
            torch._foreach_add_(counts, 1.0)
        else:  # a list: of one tensor without dimensions torch would read the number, and wait for it
            torch._foreach_add_(counts, [1.0 - control.found_inf] * len(counts))

    def _update_unit(self, unit: FlatUnit, control: StepControl | None) -> None:
        unit.wait()  # of the last step's gather, if no forward came since
        weights = _weights(unit)
        state = self.state[weights]
        shard = Shard(
            weights=weights.detach(),
            gradient=self._gradients[unit].owned,
            exp_avg=state["exp_avg"],
            exp_avg_sq=state["exp_avg_sq"],
            low_precision=unit.low_precision,
            step=state["step"],
        )
        self._update.adamw(shard, self._numbers(), control)
        if unit.policy.gathers_after_step:
            unit.publish()

    def _numbers(self) -> AdamWNumbers:
        group = self.param_groups[0]
        return AdamWNumbers(
            learning_rate=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
        )


def _weights(unit: FlatUnit) -> torch.nn.Parameter:
    assert unit.weights is not None  # the optimizer is given trainable units only
    return unit.weights
