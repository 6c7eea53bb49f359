"""The door of the engine: a model and a config in, a model and an optimizer out.

model, optimizer = zero(model, ZeroConfig(stage=3))
for batch in batches:
    optimizer.zero_grad()
    loss = model(batch)
    loss.backward()
    optimizer.step()
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.checks import check_model
from zprof.reference_engine.comm import Comm, NativeComm
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.facts import ZeroFacts, facts_of
from zprof.reference_engine.gradients.assembly import Gradients, constant_elements
from zprof.reference_engine.gradients.reducer import GradientReducer
from zprof.reference_engine.optimizer.choose import choose_update
from zprof.reference_engine.optimizer.loss_scale import DynamicLossScale
from zprof.reference_engine.optimizer.update import Update
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.policy import policy_of
from zprof.reference_engine.schedule.backward_pass import BackwardPass
from zprof.reference_engine.schedule.gather import ParameterGatherer, ParameterWaiter
from zprof.reference_engine.schedule.hooks import EngineHook
from zprof.reference_engine.schedule.input_watch import InputWatch
from zprof.reference_engine.schedule.model_guard import ModelGuard
from zprof.reference_engine.units.flat_unit import FlatUnit
from zprof.reference_engine.units.module_unit import ModuleUnit
from zprof.reference_engine.units.split import by_dtype, chosen_modules, split


def zero(
    model: nn.Module,
    config: ZeroConfig,
    comm: Comm | None = None,
    *,
    units: Iterable[nn.Module | type[nn.Module]] | None = None,
    mp: Comm | None = None,
) -> tuple["ZeroModel", ZeroOptimizer]:
    """Take over a model's parameters, gradients and optimizer state, on all ranks at once.

    Weights become those of rank 0.  ``comm`` is the native transport on the default group if not given.
    ``mp`` joins the ranks that share a model by tensor parallelism; ``comm`` is then that of the ranks that
    hold the same part of it.
    ``units`` are the modules that are gathered and reduced as a whole, or their classes: ``units=[Block]``;
    by default the children of every ``nn.ModuleList``; ``[]`` makes the whole model one unit.  In stage 3
    each must be called as a module: parameters at rest have no memory.  All ranks must then call the same
    units in the same order; which parameters they use inside may differ.  Parameters take the config's dtype
    and become contiguous; buffers stay as they are, and become those of rank 0 once, here.

    Raises:
        ValueError: the model cannot be handled; one line says why and what to do.
    """
    chosen = None if units is None else chosen_modules(model, units)
    check_model(model, chosen)
    update = choose_update(config, next(model.parameters()).device)
    comm = NativeComm() if comm is None else comm
    constant_elements(config, comm.world_size)  # refuses before anything is changed
    for buffer in model.buffers():
        _broadcast(buffer, comm)
    module_units = [
        ModuleUnit(
            spec.name,
            spec.module,
            tuple(
                FlatUnit(name, parameters, config=config, comm=comm)
                for name, parameters in by_dtype(spec.parameters, spec.name)
            ),
        )
        for spec in split(model, chosen)
    ]
    return _assemble(model, module_units, config, update, comm, mp)


def _assemble(
    model: nn.Module,
    module_units: Sequence[ModuleUnit],
    config: ZeroConfig,
    update: Update,
    comm: Comm,
    mp: Comm | None,
) -> tuple["ZeroModel", ZeroOptimizer]:
    flat = [unit for module_unit in module_units for unit in module_unit.flat]
    gradients = Gradients(module_units, config, comm)
    backward = BackwardPass()
    reducer = GradientReducer(
        gradients.by_unit,
        micro_batches=config.micro_batches,
        reduce_each=config.reduces_each_micro_batch,
        overlap=config.overlap_reduce,
        backward=backward,
        settle=gradients.settle,
    )
    backward.watch(model)
    watch = InputWatch(module_units, backward, on_over=reducer.unit_over)
    schedule = (watch, _parameter_schedule(module_units, config, backward), ModelGuard(model, flat))
    loss_scale = DynamicLossScale(config.loss_scale, flat[0].full.device) if config.scales_loss else None
    facts = facts_of(flat, config, comm.world_size)
    wrapped = ZeroModel(model, flat, reducer, facts, comm, mp, schedule=schedule, loss_scale=loss_scale)
    optimizer = ZeroOptimizer(
        gradients.by_unit, reducer, config, update=update, comm=comm, mp=mp, loss_scale=loss_scale
    )
    optimizer.register_step_post_hook(EngineHook(wrapped._changed))
    return wrapped, optimizer


def _parameter_schedule(
    units: Sequence[ModuleUnit], config: ZeroConfig, backward: BackwardPass
) -> ParameterGatherer | ParameterWaiter | None:
    policy = policy_of(config.stage)
    if policy.shard_parameters:
        return ParameterGatherer(
            units,
            forward_prefetch=config.forward_prefetch,
            backward_prefetch=config.backward_prefetch,
            keep=config.keep_after_forward,
            backward=backward,
        )
    return ParameterWaiter(units) if policy.gathers_after_step else None


def _broadcast(buffer: torch.Tensor, comm: Comm) -> None:
    # An expanded buffer repeats what it has: it can be written once only.
    own = buffer.detach()[tuple(slice(0, 1 if stride == 0 else None) for stride in buffer.stride())]
    whole = own.contiguous()
    comm.broadcast(whole, "buffers").wait()
    if whole.data_ptr() != own.data_ptr():
        own.copy_(whole)


class ZeroModel(nn.Module):
    """The user's module, with its parameters in flat units.

    Where gradients are sharded (stages 2 and 3), ``shards`` registers this rank's part of every unit as a
    parameter, its ``.grad`` the gradient shard from the backward until ``zero_grad()``, so that tools find
    what this rank stores.  In stage 3 the module's own parameters stay registered, with no memory at rest.
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
        self._schedule = schedule  # the module's hooks know it weakly
        self._loss_scale = loss_scale
        sharded = [unit.shard for unit in units if unit.policy.shard_gradients]
        self.shards = nn.ParameterList(sharded)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Call the module; in float16 the gradients of its outputs are multiplied by the loss scale."""
        outputs = self.module(*arguments, **named)
        return outputs if self._loss_scale is None else self._loss_scale.scale_gradients_of(outputs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let gradients count as zero.  Whole ones keep their memory, shards only with MD."""
        self._reducer.zero()

    @property
    def units(self) -> tuple[FlatUnit, ...]:
        """All flat units, in forward order, the frozen ones too."""
        return self._units

    def synchronize(self) -> None:
        """Wait for gathers that the last step left under way."""
        for unit in self._units:
            unit.wait()

    @contextmanager
    def gathered(self) -> Iterator[nn.Module]:
        """All parameters in memory, on all ranks at once; for reading, changes are lost in stage 3."""
        for unit in self._units:
            unit.gather()
        self.synchronize()
        try:
            yield self.module
        finally:
            for unit in self._units:
                unit.release()

    def state_dict(self, *arguments: Any, **named: Any) -> dict[str, Any]:  # type: ignore[override]
        """The whole module's weights, copied, on every rank (collective); names are the module's own."""
        with self.gathered() as module, torch.no_grad():
            whole = module.state_dict(*arguments, **named)
            return {name: value.clone() for name, value in whole.items() if isinstance(value, torch.Tensor)}

    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Refused: the flat units would not notice."""
        raise RuntimeError(
            "use load_checkpoint(), or load the weights into the module before zero() takes it over"
        )

    def _changed(self, *_: object) -> None:
        for unit in self._units:
            unit.release()  # gathered by a forward without a backward: now they are old
            unit.changed()

    def __deepcopy__(self, memo: dict[int, Any]) -> "ZeroModel":
        raise RuntimeError(
            "a model in a ZeRO engine cannot be copied: copy it before zero(), or its state_dict()"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("a model in a ZeRO engine cannot be pickled: save its state_dict() instead")

    def _apply(self, fn: Any, recurse: bool = True) -> "ZeroModel":
        raise RuntimeError("parameters are in flat units: move or convert the module before zero()")
