"""Update this rank's shard of every unit with AdamW.

Optimizer state per element of the shard: 8 bytes for both moments, 12 with fp32 master weights.

A unit has one step count and is one segment as long as each of its parameters has a gradient on this rank in
every step.  From the first step in which a parameter has none, that parameter has its own step count (4
bytes), which is not incremented in steps in which no rank has a gradient for it.

Resolve parameter groups as torch's optimizers take them: parameters with their own hyperparameters.

    zero(model, config, groups=[{"params": decayed}, {"params": biases, "weight_decay": 0.0, "lr": 1e-4}])

The config has the defaults.  Groups determine which parameters share a flat unit, so ``zero()`` fixes their
members; hyperparameters may change later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.reducer import GradientReducer
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.optimizer.adamw import (
    AdamWHyperparameters,
    Shard,
    StepControl,
    Update,
    combine_skip,
)
from zprof.reference_engine.optimizer.scale_and_clip import (
    DynamicLossScale,
    SumOfSquares,
    compute_norm,
    compute_step_control,
)
from zprof.reference_engine.weight_edits import EditSample

_OWN_STEP_PREFIX = "step."

#: Elements that a rank updates before it launches their all-gathers: 117 MB at 28 bytes, 35 us at 3.35 TB/s.
BATCH_ELEMENTS = 2**22
#: Options of torch.optim.AdamW that the engine's update does not support.
_UNSUPPORTED_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable")


class ZeroOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose parameters are flat shards, one for each trainable unit.

    ``param_groups`` and ``state`` (``exp_avg``, ``exp_avg_sq``, ``step``) have the structure of torch's
    optimizers.  A change of a group's hyperparameters, as by torch's schedulers, takes effect in the next
    step.

    A parameter without a gradient on any rank in a step is not updated: no weight decay, no moments, no step
    count, as in torch's optimizers.  If only some ranks have a gradient, it is updated with the mean over all
    ranks, in which the others count as zero.  From then on it has its own step count (``step.<name>`` in
    ``state``).

    With ``clip_norm``, or in float16, each step computes the norm of all gradients, which takes an all-reduce
    of 8 bytes in each group.  If the norm is inf or nan, in any dtype, the step is skipped on all ranks and
    not counted.  Otherwise no norm is computed, and inf or nan goes into the weights, as in torch's
    optimizers.  The host reads none of these values.

    ``gradient_norm``  norm of the last step, unscaled and before clipping: a float64 tensor on the device;
                       None before the first step and if no norm is computed
    """

    def __init__(
        self,
        units: Sequence[FlatUnit],
        gradients: Mapping[FlatUnit, UnitGradients],
        reducer: GradientReducer,
        config: ZeroConfig,
        *,
        groups: Sequence[Mapping[str, Any]],
        update: Update,
        comm: Comm,
        edits: EditSample | None,
        mp: Comm | None = None,
        loss_scale: DynamicLossScale | None = None,
    ) -> None:
        """Create the optimizer state on this rank.

        ``units`` are all units, and ``gradients`` those of the trainable ones, in forward order; ``groups``
        are the hyperparameters of each parameter group; ``edits`` has looked for edited weights when the
        forward started; ``mp`` is the tensor-parallel group.
        """
        self._groups_fixed = False
        self._all_units = tuple(units)
        self._units = tuple(gradients)
        self._gradients = gradients
        self._reducer = reducer
        self._update = update
        self._batches = split_batches(self._units, update)
        self._loss_scale = loss_scale
        self._edits = edits
        self._compare_all_weights = config.compare_all_weights
        self._clip_norm = config.clip_norm
        self._overlap_gather = config.overlap_gather
        self._squares: SumOfSquares | None = None
        if config.clip_norm is not None or loss_scale is not None:
            self._squares = SumOfSquares(gradients, update, comm=comm, mp=mp)
        self.gradient_norm: torch.Tensor | None = None
        defaults = {
            "lr": config.learning_rate,
            "betas": config.betas,
            "eps": config.eps,
            "weight_decay": config.weight_decay,
            "fused": True,  # makes load_state_dict() put step counts on the device, in float32
        }
        parameters = [
            [_get_weights(unit) for unit in self._units if unit.group == index]
            for index in range(len(groups))
        ]
        super().__init__(
            [
                {**hyperparameters, "fused": True, "params": params}
                for hyperparameters, params in zip(groups, parameters, strict=True)
            ],
            defaults,
        )
        self._groups_fixed = True
        for unit in self._units:
            self._make_state(unit)

    @property
    def loss_scale(self) -> torch.Tensor | None:
        """The current loss scale, on the device; None if no loss scaling is used."""
        return None if self._loss_scale is None else self._loss_scale.value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise: the flat units cannot be changed after ``zero()``.

        Raises:
            ValueError: always, when called by the user.
        """
        if self._groups_fixed:
            raise ValueError(
                "groups are fixed once zero() has taken over the model; pass them to zero(..., groups=[...])"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's shards with the reduced gradients; in stages 1 and 2, gather the new parameters.

        Raises:
            RuntimeError: backward() was not called for every micro-batch.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._reducer.check_reduced()
        if self._squares is None:
            control = None
        else:
            self.gradient_norm = compute_norm(self._squares.sum(), self.loss_scale)
            control = compute_step_control(self.gradient_norm, self.loss_scale, self._clip_norm)
        segments = {
            unit: split_shard(unit, self._gradients[unit], self.state[_get_weights(unit)])
            for unit in self._units
        }
        self._increment_step_counts(
            control, [segment for unit_segments in segments.values() for segment in unit_segments]
        )
        edited = self._edits is not None and self._edits.take_result()
        for units in self._batches:
            self._take_edits(units, compare=edited or self._compare_all_weights)
            self._update_units(units, segments, control)
        if self._loss_scale is not None and control is not None:
            self._loss_scale.update(control.found_inf)
        if not self._overlap_gather:
            for unit in self._units:
                unit.wait()
        for unit in self._all_units:
            unit.release()  # still gathered after a forward without a backward, and now outdated
            unit.bump_versions()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero all gradients; full gradients keep their memory, gradient shards only with ``defragment``."""
        self._reducer.zero()

    def scalar_state(self) -> dict[str, Any]:
        """Return step counts, hyperparameters and loss scale as Python numbers (waits for the device).

        ``steps`` has the counts of parameters on this rank that were updated in fewer steps.
        """
        steps = {int(self.state[_get_weights(unit)]["step"]) for unit in self._units}
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.param_groups
        ]
        scale = None if self._loss_scale is None else self._loss_scale.read_state()
        own_steps = {
            name: count
            for unit in self._units
            for name, count in read_own_steps(unit, self.state[_get_weights(unit)]).items()
        }
        return {"step": max(steps), "steps": own_steps, "groups": groups, "loss_scale": scale}

    def load_scalar_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`scalar_state`; call it on every rank."""
        for unit in self._units:
            set_steps(unit, self.state[_get_weights(unit)], state["step"], state.get("steps", {}))
        for group, hyperparameters in zip(self.param_groups, state["groups"], strict=True):
            group.update(hyperparameters)
        if self._loss_scale is not None and state.get("loss_scale") is not None:
            self._loss_scale.set(state["loss_scale"])

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict of this rank's shards, with the loss scale (waits for the device)."""
        state = super().state_dict()
        if self._loss_scale is not None:
            state["loss_scale"] = self._loss_scale.read_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict` of the same rank and world size; it does not contain weights."""
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        if self._loss_scale is not None and "loss_scale" in state_dict:
            self._loss_scale.set(state_dict["loss_scale"])

    def _make_state(self, unit: FlatUnit) -> None:
        weights = _get_weights(unit)
        self.state[weights] = {
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
            "exp_avg": torch.zeros_like(weights.detach()),
            "exp_avg_sq": torch.zeros_like(weights.detach()),
        }
        if not unit.policy.shard_gradients and unit.full.dtype == weights.dtype:
            weights.grad = self._gradients[unit].mean_shard  # sharded ones attach themselves

    def _increment_step_counts(
        self, control: StepControl | None, segments: "Sequence[UpdateSegment]"
    ) -> None:
        counts = [self.state[_get_weights(unit)]["step"] for unit in self._units]
        counts += [
            segment.step for segment in segments if segment.has_own_step and segment.no_gradient is None
        ]
        if control is None:
            torch._foreach_add_(counts, 1.0)
        else:  # a list, because the host would read (and wait for) a single 0-dim tensor
            torch._foreach_add_(counts, [1.0 - control.found_inf] * len(counts))
        for segment in segments:
            segment_control = segment.control(control)
            if segment.no_gradient is not None and segment_control is not None:
                segment.step.add_(1.0 - segment_control.found_inf)

    def _take_edits(self, units: Sequence[FlatUnit], *, compare: bool) -> None:
        for unit in units:
            unit.wait()  # for the last step's all-gather, if no forward has run since
            if not unit.policy.shard_parameters:
                unit.take_edits(compare=compare)

    def _update_units(
        self,
        units: Sequence[FlatUnit],
        segments: "Mapping[FlatUnit, Sequence[UpdateSegment]]",
        control: StepControl | None,
    ) -> None:
        shards: dict[AdamWHyperparameters, list[Shard]] = {}
        for unit in units:
            group = self.param_groups[unit.group]
            hyperparameters = AdamWHyperparameters(
                learning_rate=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
            )
            group_shards = shards.setdefault(hyperparameters, [])
            group_shards += [self._make_shard(unit, segment) for segment in segments[unit]]
        for hyperparameters, group_shards in shards.items():
            self._update.adamw(group_shards, hyperparameters, control)
        for unit in units:
            if unit.policy.gathers_after_step:
                unit.gather_updated()

    def _make_shard(self, unit: FlatUnit, segment: "UpdateSegment") -> Shard:
        weights, part = _get_weights(unit), segment.part
        state = self.state[weights]
        return Shard(
            weights=weights.detach()[part],
            gradient=self._gradients[unit].mean_shard[part],
            exp_avg=state["exp_avg"][part],
            exp_avg_sq=state["exp_avg_sq"][part],
            low_precision=None if unit.low_precision is None else unit.low_precision[part],
            step=segment.step,
            skip=segment.no_gradient,
        )


def split_batches(units: Sequence[FlatUnit], update: Update) -> list[list[FlatUnit]]:
    """Split units into batches that are updated together, in order.

    If updated parameters must be gathered, a batch ends with the unit that reaches ``BATCH_ELEMENTS``, so
    that the all-gathers of its units start before the next unit is updated.
    """
    batches: list[list[FlatUnit]] = []
    elements = 0
    for unit in units:
        full = unit.policy.gathers_after_step and elements >= BATCH_ELEMENTS
        if not batches or full or not update.joins_units:
            batches.append([])
            elements = 0
        batches[-1].append(unit)
        elements += unit.owned_range.stop - unit.owned_range.start
    return batches


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSegment:
    """A range of this rank's shard of a unit.

    ``has_own_step``  True if ``step`` belongs to this range alone
    ``no_gradient``   1.0 if no rank had a gradient in this step, else 0.0; None if this rank had one
    """

    part: slice
    step: torch.Tensor
    has_own_step: bool = False
    no_gradient: torch.Tensor | None = None

    def control(self, step_control: StepControl | None) -> StepControl | None:
        """Return the control of this segment, which is skipped if no rank had a gradient."""
        return combine_skip(step_control, self.no_gradient)


def split_shard(unit: FlatUnit, gradients: UnitGradients, state: dict[str, Any]) -> list[UpdateSegment]:
    """Split this rank's shard of a unit into segments; may add step counts to ``state``."""
    elements = unit.owned_range.stop - unit.owned_range.start
    no_gradient = {}
    for index in gradients.list_missing_in_step():
        part = unit.find_owned_part(index)
        if part is not None:
            no_gradient[index] = gradients.flag_missing_everywhere(index, part.start)
            state.setdefault(_OWN_STEP_PREFIX + unit.layout.slots[index].name, state["step"].clone())
    segments = []
    position = 0
    for index in _find_own_steps(unit, state):
        part = unit.find_owned_part(index)
        if part is None:
            continue
        if position < part.start:
            segments.append(UpdateSegment(part=slice(position, part.start), step=state["step"]))
        step = state[_OWN_STEP_PREFIX + unit.layout.slots[index].name]
        segments.append(
            UpdateSegment(part=part, step=step, has_own_step=True, no_gradient=no_gradient.get(index))
        )
        position = part.stop
    if position < elements:
        segments.append(UpdateSegment(part=slice(position, elements), step=state["step"]))
    return segments


def read_own_steps(unit: FlatUnit, state: Mapping[str, Any]) -> dict[str, int]:
    """Return the step counts of parameters that differ from the unit's (waits for the device)."""
    common = int(state["step"])
    own_steps = {
        unit.layout.slots[index].name: int(state[_OWN_STEP_PREFIX + unit.layout.slots[index].name])
        for index in _find_own_steps(unit, state)
    }
    return {name: count for name, count in own_steps.items() if count != common}


def set_steps(unit: FlatUnit, state: dict[str, Any], common: int, own: Mapping[str, int]) -> None:
    """Set the unit's step count, and those of single parameters as returned by :func:`read_own_steps`."""
    state["step"].fill_(common)
    for key in [key for key in state if key.startswith(_OWN_STEP_PREFIX)]:
        del state[key]
    for index, slot in enumerate(unit.layout.slots):
        if slot.name in own and unit.find_owned_part(index) is not None:
            state[_OWN_STEP_PREFIX + slot.name] = torch.full_like(state["step"], own[slot.name])


def _find_own_steps(unit: FlatUnit, state: Mapping[str, Any]) -> list[int]:
    if not any(key.startswith(_OWN_STEP_PREFIX) for key in state):
        return []
    return [index for index, slot in enumerate(unit.layout.slots) if _OWN_STEP_PREFIX + slot.name in state]


def _get_weights(unit: FlatUnit) -> torch.nn.Parameter:
    assert unit.weights is not None  # the optimizer gets trainable units only
    return unit.weights


def resolve_groups(
    model: nn.Module, groups: Iterable[Mapping[str, Any]] | None, config: ZeroConfig
) -> tuple[Sequence[Mapping[str, Any]], Mapping[nn.Parameter, int]]:
    """Return the hyperparameters of each group, and the group index of each trainable parameter.

    Without ``groups``, all parameters form one group.

    Frozen parameters need no group, and are ignored in groups.

    Raises:
        ValueError: the groups are invalid; the one-line message names the parameter or option and the fix.
    """
    name_by_parameter = {parameter: name for name, parameter in model.named_parameters()}
    defaults = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    if groups is None:
        trainable = (parameter for parameter in name_by_parameter if parameter.requires_grad)
        return [defaults], dict.fromkeys(trainable, 0)
    hyperparameters: list[Mapping[str, Any]] = []
    group_by_parameter: dict[nn.Parameter, int] = {}
    for index, group in enumerate(groups):
        if not isinstance(group, Mapping) or "params" not in group:
            raise ValueError(f"groups[{index}] is not a dict with params; pass {{'params': [...]}}")
        options = {key: value for key, value in group.items() if key != "params"}
        hyperparameters.append(
            {**defaults, **options, "betas": tuple(options.get("betas", defaults["betas"]))}
        )
        _check_hyperparameters(index, hyperparameters[-1])
        for parameter in _list_parameters(index, group["params"]):
            if parameter not in name_by_parameter:
                shape = tuple(parameter.shape)
                raise ValueError(f"groups[{index}] has a parameter of shape {shape} that is not in the model")
            if parameter in group_by_parameter:
                first = group_by_parameter[parameter]
                location = (
                    f"twice in groups[{index}]" if first == index else f"in groups[{first}] and [{index}]"
                )
                raise ValueError(f"parameter {name_by_parameter[parameter]} is {location}; list it once")
            group_by_parameter[parameter] = index
    missing = [
        name
        for parameter, name in name_by_parameter.items()
        if parameter.requires_grad and parameter not in group_by_parameter
    ]
    if missing:
        rest = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ValueError(
            f"parameter {missing[0]} is in no group{rest}; put it in one, or freeze it with "
            "requires_grad_(False)"
        )
    trained = {parameter: index for parameter, index in group_by_parameter.items() if parameter.requires_grad}
    return hyperparameters, trained


def _list_parameters(index: int, params: Any) -> list[nn.Parameter]:
    """List the parameters in ``params``: one, several, or (name, parameter) pairs, as in torch."""
    items = [params] if isinstance(params, torch.Tensor) else list(params)
    parameters: list[nn.Parameter] = []
    for item in items:
        parameter = item[1] if isinstance(item, tuple) and len(item) == 2 else item
        if not isinstance(parameter, nn.Parameter):
            kind = type(parameter).__name__
            raise ValueError(f"groups[{index}] has a {kind} in params; it must be a parameter")
        parameters.append(parameter)
    return parameters


def _check_hyperparameters(index: int, hyperparameters: Mapping[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        if not hyperparameters[name] >= 0:
            raise ValueError(f"{name} of groups[{index}] is {hyperparameters[name]!r}; it must be 0 or more")
    if len(hyperparameters["betas"]) != 2 or not all(0 <= beta < 1 for beta in hyperparameters["betas"]):
        raise ValueError(
            f"betas of groups[{index}] is {hyperparameters['betas']!r}; it must be two numbers in [0, 1)"
        )
    for name in _UNSUPPORTED_OPTIONS:
        if hyperparameters.get(name):
            raise ValueError(f"groups[{index}] sets {name}, which is not supported; leave it out")
