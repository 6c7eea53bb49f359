"""Wrap a model with zero(), which shards its parameters, gradients and optimizer state.

The training loop does not change:

    model, optimizer = zero(model, ZeroConfig(stage=3))
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()

zero() rejects models that the engine cannot train before it changes them; unsupported changes made later
raise an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_unit import FlatUnit, ModuleUnit, get_policy
from zprof.reference_engine.gather import ParameterGatherer, PostStepGatherWaiter
from zprof.reference_engine.gradients.build import build_gradients, get_constant_elements
from zprof.reference_engine.gradients.reducer import GradientReducer
from zprof.reference_engine.hooks import BackwardPass, EngineHook, InputWatch, UntracedHook, is_in_backward
from zprof.reference_engine.optimizer.adamw import Update, choose_update
from zprof.reference_engine.optimizer.scale_and_clip import DynamicLossScale
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer, resolve_groups
from zprof.reference_engine.unit_split import (
    NEVER_CALLED,
    resolve_unit_modules,
    split_by_dtype,
    split_into_units,
)
from zprof.reference_engine.weight_edits import EditSample, make_edit_sample


def zero(
    model: nn.Module,
    config: ZeroConfig,
    comm: Comm | None = None,
    *,
    groups: Iterable[Mapping[str, Any]] | None = None,
    units: Iterable[nn.Module | type[nn.Module]] | None = None,
    mp: Comm | None = None,
) -> tuple["ZeroModel", ZeroOptimizer]:
    """Shard a model's parameters, gradients and optimizer state (collective); return model and optimizer.

    All ranks start from the weights of rank 0.  ``comm`` defaults to the native transport on the default
    group.  ``mp`` is the tensor-parallel group, whose ranks share one model; ``comm`` is then the
    data-parallel group, whose ranks hold the same part of the model.

    ``groups`` are parameter groups as ``torch.optim.AdamW`` takes them; ``lr``, ``betas``, ``eps`` and
    ``weight_decay`` default to the config's values.  Each trainable parameter must be in exactly one group.
    A parameter that has no gradient on any rank in a step is not updated, as in torch's optimizers.  If only
    some ranks have a gradient for it, the others count as zero in the mean.

    ``units`` are the modules, or their classes, that are gathered and reduced as one: ``units=[Block]``.  The
    default is the children of every ``nn.ModuleList``; ``[]`` makes the entire model one unit.  In stage 3
    each unit must be called as a module, because its parameters are released at rest.  All ranks must call
    the same units in the same order, but may use different parameters inside them.  Parameters are converted
    to the config's dtype and made contiguous.  Buffers keep their dtype; rank 0's values are broadcast once,
    in this call.

    Raises:
        ValueError: the model is not supported; the one-line message has the reason and the fix.
    """
    unit_modules = None if units is None else resolve_unit_modules(model, units)
    check_model(model, unit_modules)
    hyperparameters, group_index = resolve_groups(model, groups, config)
    update = choose_update(config, next(model.parameters()).device)
    comm = NativeComm() if comm is None else comm
    get_constant_elements(config, comm.world_size)  # raises before anything is changed
    for buffer in model.buffers():
        _broadcast_buffer(buffer, comm)
    module_units = [
        ModuleUnit(
            spec.name,
            spec.module,
            tuple(
                FlatUnit(
                    name,
                    parameters,
                    config=config,
                    comm=comm,
                    group=group_index.get(parameters[0][1], 0),
                )
                for name, parameters in split_by_dtype(spec.parameters, spec.name, group_index)
            ),
        )
        for spec in split_into_units(model, unit_modules)
    ]
    return _build_engine(model, module_units, config, hyperparameters, update, comm, mp)


def _build_engine(
    model: nn.Module,
    module_units: Sequence[ModuleUnit],
    config: ZeroConfig,
    hyperparameters: Sequence[Mapping[str, Any]],
    update: Update,
    comm: Comm,
    mp: Comm | None,
) -> tuple["ZeroModel", ZeroOptimizer]:
    flat = [unit for module_unit in module_units for unit in module_unit.flat]
    gradients, pools = build_gradients(module_units, config, comm)
    backward = BackwardPass([parameter for unit in flat if unit.trainable for parameter in unit.parameters])
    reducer = GradientReducer(gradients, pools, config, backward)
    backward.watch(model)
    watch = InputWatch(module_units, backward, on_end=reducer.end_unit_backward)
    edits = None if config.compare_all_weights else make_edit_sample(flat)
    schedule = (
        watch,
        _make_parameter_schedule(module_units, config, backward),
        ModelGuard(model, flat, edits),
    )
    loss_scale = DynamicLossScale(config.loss_scale, flat[0].full.device) if config.scales_loss else None
    facts = collect_facts(flat, config, comm.world_size)
    wrapped = ZeroModel(model, flat, reducer, facts, comm, mp, schedule=schedule, loss_scale=loss_scale)
    optimizer = ZeroOptimizer(
        flat,
        gradients,
        reducer,
        config,
        groups=hyperparameters,
        update=update,
        comm=comm,
        edits=edits,
        mp=mp,
        loss_scale=loss_scale,
    )
    return wrapped, optimizer


def _make_parameter_schedule(
    units: Sequence[ModuleUnit], config: ZeroConfig, backward: BackwardPass
) -> ParameterGatherer | PostStepGatherWaiter | None:
    policy = get_policy(config.stage)
    if policy.shard_parameters:
        return ParameterGatherer(
            units,
            forward_prefetch=config.forward_prefetch,
            backward_prefetch=config.backward_prefetch,
            keep=config.keep_after_forward,
            backward=backward,
        )
    return PostStepGatherWaiter(units) if policy.gathers_after_step else None


def _broadcast_buffer(buffer: torch.Tensor, comm: Comm) -> None:
    # Elements of an expanded buffer (stride 0) share memory: write each element only once.
    unexpanded = buffer.detach()[tuple(slice(0, 1 if stride == 0 else None) for stride in buffer.stride())]
    contiguous = unexpanded.contiguous()
    comm.broadcast(contiguous, "buffers").wait()
    if contiguous.data_ptr() != unexpanded.data_ptr():
        unexpanded.copy_(contiguous)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroFacts:
    """Sizes of one engine.  Each ``*_bytes`` is bytes per element.

    ``parameters`` is the number of elements (the paper's psi), frozen ones included.  ``padding_elements`` is
    the sum over all units and ranks.  ``optimizer_state_bytes`` includes fp32 master weights;
    ``step_counters`` is the number of the optimizer's 4-byte step tensors on each rank.  ``reduce_bytes`` is
    the size of a gradient element on the wire.  ``constant_buffers`` is the number of elements in a
    constant-size buffer; None if buffers have the size of the unit.
    """

    engine: str = "zero"
    stage: int
    shard_ranks: int
    parameters: int
    trainable_parameters: int
    padding_elements: int
    step_counters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    communication_bytes: int
    reduce_bytes: int
    micro_batches: int
    reduces_each_micro_batch: bool
    constant_buffers: int | None
    units: tuple[str, ...]


def collect_facts(units: Sequence[FlatUnit], config: ZeroConfig, ranks: int) -> ZeroFacts:
    """Collect the sizes of an engine with these units."""
    element = config.dtype.itemsize
    trainable = [unit for unit in units if unit.trainable]
    return ZeroFacts(
        stage=config.stage,
        shard_ranks=ranks,
        parameters=sum(unit.layout.numel for unit in units),
        trainable_parameters=sum(unit.layout.numel for unit in trainable),
        padding_elements=sum(unit.layout.padding for unit in units),
        step_counters=len(trainable),
        parameter_bytes=element,
        gradient_bytes=config.wire_dtype.itemsize if config.stage >= 2 else element,
        optimizer_state_bytes=8 if config.dtype == torch.float32 else 12,
        communication_bytes=element,
        reduce_bytes=config.wire_dtype.itemsize,
        micro_batches=config.micro_batches,
        reduces_each_micro_batch=config.reduces_each_micro_batch,
        constant_buffers=get_constant_elements(config, ranks),
        units=tuple(unit.name for unit in units),
    )


class ZeroModel(nn.Module):
    """The user's module, with its parameters in flat units.

    If gradients are sharded (stages 2 and 3), ``shards`` registers this rank's shard of every unit as a
    parameter, so that tools find what the rank stores.  Its ``.grad`` is the gradient shard, from the
    backward until ``zero_grad()``.  In stage 3 the module's own parameters stay registered, without memory at
    rest.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[FlatUnit],
        reducer: GradientReducer,
        facts: ZeroFacts,
        comm: Comm,
        mp: Comm | None = None,
        *,
        schedule: Sequence[object] = (),
        loss_scale: DynamicLossScale | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.facts = facts
        self.comm = comm
        self.mp = mp
        self._units = tuple(units)
        self._reducer = reducer
        self._schedule = schedule  # kept alive here: the module's hooks hold only weak references
        self._loss_scale = loss_scale
        sharded = [unit.shard for unit in units if unit.policy.shard_gradients]
        self.shards = nn.ParameterList(sharded)

    def forward(self, *arguments: Any, **keyword_arguments: Any) -> Any:
        """Call the module; in float16, scale the gradients of its outputs by the loss scale."""
        outputs = self.module(*arguments, **keyword_arguments)
        return outputs if self._loss_scale is None else self._loss_scale.scale_output_gradients(outputs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero all gradients; full gradients keep their memory, gradient shards only with ``defragment``."""
        self._reducer.zero()

    @property
    def units(self) -> tuple[FlatUnit, ...]:
        """All flat units in forward order, including frozen ones."""
        return self._units

    def synchronize(self) -> None:
        """Wait for all-gathers in flight, and pick up weights that the user edited."""
        for unit in self._units:
            unit.wait()
            if not unit.policy.shard_parameters:
                unit.take_edits(compare=True)

    @contextmanager
    def gathered(self) -> Iterator[nn.Module]:
        """Gather all parameters for reading or editing (collective); make the same edits on all ranks."""
        for unit in self._units:
            unit.gather()
        self.synchronize()
        try:
            yield self.module
        finally:
            for unit in self._units:
                unit.take_edits(compare=True)
                unit.release()

    def state_dict(self, *arguments: Any, fp32: bool = False, **keyword_arguments: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return an unsharded copy of all weights on every rank (collective), under the module's own names.

        With ``fp32``, 16-bit parameters are replaced by their master weights.
        """
        with self.gathered() as module, torch.no_grad():
            full = module.state_dict(*arguments, **keyword_arguments)
            copies = {name: value.clone() for name, value in full.items() if isinstance(value, torch.Tensor)}
            if fp32:
                prefix, names = keyword_arguments.get("prefix", ""), self._names_by_parameter()
                for unit in self._units:
                    for parameter, value in zip(unit.parameters, unit.master_weights(), strict=True):
                        keys = [key for name in names[parameter] if (key := prefix + name) in copies]
                        copies |= {key: value.clone() for key in keys}
        return copies

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the module's weights (collective); pass the same values on all ranks.

        fp32 values are copied to the master weights unrounded.

        Raises:
            ValueError: ``assign`` is set, which would replace the parameters' memory.
        """
        if assign:
            raise ValueError("assign=True would detach the parameters from the engine; leave it out")
        with self.gathered() as module:
            result = module.load_state_dict(state_dict, strict=strict)
            names = self._names_by_parameter()
            for unit in self._units:
                unit.take_edits(compare=True)
                for index, parameter in enumerate(unit.parameters):
                    for name in names[parameter]:
                        value = state_dict.get(name)
                        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                            unit.set_master_weights(index, value)
        return result

    def _names_by_parameter(self) -> dict[nn.Parameter, list[str]]:
        names: dict[nn.Parameter, list[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(name)
        return names

    def __deepcopy__(self, memo: dict[int, Any]) -> "ZeroModel":
        raise RuntimeError(
            "a model in a ZeRO engine cannot be copied: copy it before zero(), or copy its state_dict()"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("a model in a ZeRO engine cannot be pickled: save its state_dict() instead")

    def _apply(self, fn: Any, recurse: bool = True) -> "ZeroModel":
        raise RuntimeError("parameters are in flat units: move or convert the model before zero()")


def check_model(model: nn.Module, unit_modules: Iterable[nn.Module] | None) -> None:
    """Check that the engine supports the model.

    Raises:
        ValueError: it does not; the one-line message names the parameter or module and the fix.
    """
    _check_modules(model)
    parameters = dict(model.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError("the model has no trainable parameters; there is nothing to optimize")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name} is uninitialized; run the lazy module once before zero()")
        if parameter.device.type == "meta":
            raise ValueError(f"parameter {name} is on the meta device; materialize it before zero()")
        if not issubclass(type(parameter), nn.Parameter):
            kind = type(parameter).__name__
            raise ValueError(
                f"parameter {name} is a {kind}; parameters must be plain tensors, not sharded yet"
            )
        if parameter.is_inference():
            raise ValueError(
                f"parameter {name} was created in inference mode; create the model outside of it"
            )
        if not parameter.dtype.is_floating_point:
            raise ValueError(f"parameter {name} is {parameter.dtype}; parameters must be floating point")
        if parameter.untyped_storage().nbytes() == 0 and parameter.numel() > 0:
            raise ValueError(f"parameter {name} has no memory; the model is already in a ZeRO engine")
    _check_memory(parameters)
    devices = sorted({str(parameter.device) for parameter in parameters.values()})
    if len(devices) > 1:
        raise ValueError(f"parameters are on several devices ({', '.join(devices)}); move the model to one")
    inside = set(model.modules())
    if any(module not in inside for module in unit_modules or ()):
        raise ValueError("a unit is not a module of the model; take units from model.modules()")
    for module in unit_modules or ():
        if isinstance(module, NEVER_CALLED):
            raise ValueError(
                f"a unit is a {type(module).__name__}, which has no forward; choose the modules inside it"
            )


def check_not_wrapped(model: nn.Module) -> None:
    """Check that no existing engine has wrapped a part of the model.

    Raises:
        ValueError: one has; the one-line message names the module or parameter.
    """
    for name, module in model.named_modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if any(isinstance(hook, EngineHook) and hook.alive for hook in hooks):
            raise ValueError(
                f"module {name or 'root'} is already in a ZeRO engine; call zero() once per model"
            )
    for name, parameter in model.named_parameters():
        hooks = list((parameter._post_accumulate_grad_hooks or {}).values())
        if any(isinstance(hook, EngineHook) and hook.alive for hook in hooks):
            raise ValueError(f"parameter {name} is already in a ZeRO engine; call zero() once per model")


def _check_modules(model: nn.Module) -> None:
    check_not_wrapped(model)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise ValueError(
                f"module {name} has sparse gradients, which are not supported; set sparse to False"
            )
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(
                f"module {name or 'root'} is a {type(module).__name__}, which reduces gradients itself; "
                "give zero() the module inside it"
            )


def _check_memory(parameters: dict[str, nn.Parameter]) -> None:
    spans = []
    for name, parameter in parameters.items():
        if parameter.numel():
            dimensions = zip(parameter.shape, parameter.stride(), strict=True)
            last_offset = sum((size - 1) * stride for size, stride in dimensions)
            start = parameter.data_ptr()
            spans.append((start, start + (last_offset + 1) * parameter.element_size(), name))
    for (_, end, first), (start, _, second) in pairwise(sorted(spans)):
        if start < end:
            raise ValueError(
                f"parameters {first} and {second} share memory but are separate parameters; "
                "use one nn.Parameter to tie them, or copy one"
            )


class ModelGuard:
    """Checks the parameters before every training forward; takes about 1 us per module.

    It also checks the sampled 16-bit parameters for edits; the optimizer's step uses the result.
    """

    def __init__(self, model: nn.Module, units: Sequence[FlatUnit], edits: EditSample | None) -> None:
        """Register a hook on the model."""
        self._edits = edits
        self._trainable = {id(parameter): unit.trainable for unit in units for parameter in unit.parameters}
        model.register_forward_pre_hook(UntracedHook(self._before_forward), prepend=True)

    def _before_forward(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or is_in_backward():
            return
        known = self._trainable
        with torch._C.DisableTorchFunctionSubclass():
            for module in model.modules():
                for parameter in module._parameters.values():
                    if parameter is not None and known.get(id(parameter)) is not parameter.requires_grad:
                        self._raise_changed(model, parameter)
        if self._edits is not None:
            self._edits.compare()

    def _raise_changed(self, model: nn.Module, parameter: nn.Parameter) -> None:
        name = next(name for name, other in model.named_parameters() if other is parameter)
        if id(parameter) not in self._trainable:
            raise RuntimeError(
                f"parameter {name} is not in the engine: change the model before zero(), not after"
            )
        change = "unfrozen" if parameter.requires_grad else "frozen"
        raise RuntimeError(f"parameter {name} was {change} while in the engine: do that before zero()")
