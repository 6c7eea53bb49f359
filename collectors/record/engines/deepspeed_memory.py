"""List what DeepSpeed's engines hold outside of modules and optimizer states, and report gathers and steps.

Gradients of stages 1 to 3 are not in ``.grad`` when the optimizer runs, master weights of stage 3 are not in
the optimizer's groups, and a parameter is gathered into a new tensor each time.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from zprof.collectors.record.engines.deepspeed import KEPT_GRADIENTS, list_masters
from zprof.collectors.record.memory.log import StorageRole
from zprof.collectors.record.memory.storages import find_nested_tensors
from zprof.model.tenants import Tenant

_PARTITION = StorageRole(Tenant.GRADIENTS, "partition", "engine")
_ACCUMULATED = StorageRole(Tenant.GRADIENTS, "accumulated", "engine")
_MASTER = StorageRole(Tenant.OPTIMIZER_STATE, "master", "engine")
BUCKET = StorageRole(Tenant.COMMUNICATION_BUFFERS, "reduce_bucket", "engine")
_STAGING = StorageRole(Tenant.COMMUNICATION_BUFFERS, "offload_staging", "engine")

#: Attributes of the ZeRO optimizers, and who owns the tensors in them.
_ATTRIBUTES = (
    ("averaged_gradients", _PARTITION),
    ("all_grad_tensors", _PARTITION),
    *((name, _ACCUMULATED) for name in KEPT_GRADIENTS),
    ("fp32_groups_gradients", _ACCUMULATED),
    ("temp_grad_buffer_for_cpu_offload", _STAGING),
    ("temp_grad_buffer_for_gpu_offload", _STAGING),
    ("param_buffer_of_bit16_for_cpu_offload_groups", _STAGING),
)
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator"


def iter_held_tensors(engine: Any) -> Iterator[tuple[StorageRole, torch.Tensor]]:
    """Yield each tensor that an engine holds for its sharding, with its owner."""
    optimizer = engine.optimizer
    for tensor in list_masters(engine):
        yield _MASTER, tensor
        if tensor.grad is not None:
            yield _PARTITION, tensor.grad
    for name, role in _ATTRIBUTES:
        for tensor in find_nested_tensors(getattr(optimizer, name, None)):
            yield role, tensor
    for parameter in engine.module.parameters():
        accumulated = getattr(parameter, "grad_accum", None)
        if isinstance(accumulated, torch.Tensor):
            yield _ACCUMULATED, accumulated
    for tensor in iter_buckets(engine):
        yield BUCKET, tensor


def iter_buckets(engine: Any) -> Iterator[torch.Tensor]:
    """Yield the buckets in which the engine collects gradients, in stages 1 and 2 within a backward only.

    They are copied before they are reduced, so no collective is called with them.
    """
    for bucket in list((getattr(engine.optimizer, "ipg_buckets", None) or {}).values()):
        yield from find_nested_tensors(getattr(bucket, "buffer", None))


class EngineWatch:
    """Report gathers and steps of engines between ``install`` and ``remove``. The callbacks must not raise.

    Args:
        engines: The engines of the model.
        on_gathered: Called with a module whose parameters have just been gathered.
        before_step: Called before an engine's ZeRO optimizer steps: its gradients are complete.
        after_step: Called after it has gathered the updated parameters.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        on_gathered: Callable[[Any], None],
        before_step: Callable[[], None],
        after_step: Callable[[], None],
    ) -> None:
        self._engines = engines
        self._on_gathered, self._before_step, self._after_step = on_gathered, before_step, after_step
        self._is_active = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap the optimizers' ``step``, and the gathering of stage 3."""
        self._is_active = True
        for engine in self._engines:
            if not isinstance(engine.optimizer, torch.optim.Optimizer):  # torch's own has hooks
                self._patch(engine.optimizer, "step", self._wrap_step)
        coordinator = getattr(sys.modules.get(_COORDINATOR), "PartitionedParameterCoordinator", None)
        if self._engines and coordinator is not None:
            self._patch(coordinator, "fetch_sub_module", self._wrap_fetch)

    def remove(self) -> None:
        """Restore them; a wrapper that was wrapped in the meantime stays in place, inactive."""
        self._is_active = False
        while self._undo:
            self._undo.pop()()
        self._engines = ()

    def _patch(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        is_own = name in vars(owner)
        original = getattr(owner, name)
        wrapper = wrap(original)
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original) if is_own else delattr(owner, name)

        self._undo.append(undo)

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self._is_active:
                return original(*args, **kwargs)
            self._before_step()
            try:
                return original(*args, **kwargs)
            finally:
                self._after_step()

        return step

    def _wrap_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fetch_sub_module(coordinator: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(coordinator, module, *args, **kwargs)
            if self._is_active:
                self._on_gathered(module)
            return result

        return fetch_sub_module
