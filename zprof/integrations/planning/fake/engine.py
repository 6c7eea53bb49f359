"""One rank of the reference engine in a fake process group, on tensors that have shapes and no memory.

The engine itself is unchanged.  Left out are its checks of memory that is not there, and the guard that gives
parameters another class while their values are away: there are no values, and a fake tensor needs its class.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from zprof.integrations.planning.fake.settings import Settings
from zprof.model.planning.job import ElementBytes
from zprof.reference_engine import engine
from zprof.reference_engine.activations import block_runner
from zprof.reference_engine.comm import NativeComm
from zprof.reference_engine.comm.mesh import Mesh, make_mesh
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.units.flat_unit import FlatUnit
from zprof.reference_engine.units.split import default_unit_modules, split

#: Storages lie so far apart that no two of them can overlap.
_APART_BITS = 48
_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A model in the engine.  ``units``: modules that are units, by name; the root is not among them."""

    model: ZeroModel
    optimizer: ZeroOptimizer
    units: dict[str, nn.Module]


@contextmanager
def fake_world(*, dp: int, mp: int) -> Iterator[Mesh]:
    """Rank 0 of a process group whose collectives do nothing; the mesh is made before anything is fake."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=dp * mp)
    try:
        mesh = make_mesh(NativeComm, dp=dp, mp=mp)
        try:
            yield mesh
        finally:
            mesh.close()
    finally:
        dist.destroy_process_group()


@contextmanager
def without_memory(element_bytes: ElementBytes) -> Iterator[None]:
    """Within, tensors are fake ones of the CPU, and the engine can work with them.

    Where the plan's optimizer makes no fp32 copy of a gradient, as the engine's CUDA kernel, the engine's
    does not either.
    """
    with ExitStack() as stack:
        if element_bytes.parameter < _FP32_BYTES and not element_bytes.gradient_copy:
            stack.enter_context(mock.patch.object(engine, "choose_update", return_value=_InPlace()))
        stack.enter_context(mock.patch.object(engine, "check_model", _unchecked))
        stack.enter_context(mock.patch.object(FlatUnit, "_hide", _unguarded))
        stack.enter_context(mock.patch.object(FakeTensor, "data_ptr", _address, create=True))
        stack.enter_context(FakeTensorMode())
        yield


def gpt_rank(config: GPTConfig, settings: Settings, mesh: Mesh) -> Rank:
    """The engine's own model."""
    run_block = block_runner(settings.activations, blocks=config.layers, mp=mesh.mp)
    return _taken_over(GPT(config, mesh.mp, run_block), settings, mesh)


def user_rank(model: nn.Module, settings: Settings, mesh: Mesh) -> Rank:
    """A user's model; where the job says so, its units keep their input only."""
    if settings.activations.checkpoint:
        for unit in default_unit_modules(model):
            unit.forward = partial(  # the engine's hooks stay around it
                checkpoint, unit.forward, use_reentrant=False, preserve_rng_state=False
            )
    return _taken_over(model, settings, mesh)


def _taken_over(model: nn.Module, settings: Settings, mesh: Mesh) -> Rank:
    """In the engine, with its own choice of units."""
    units = {spec.name: spec.module for spec in split(model) if spec.module is not model}
    zero_model, optimizer = engine.zero(model, settings.zero, mesh.dp, mp=mesh.mp)
    return Rank(model=zero_model, optimizer=optimizer, units=units)


class _InPlace:
    """AdamW that reads the gradient as it is and makes nothing, as one kernel on a GPU does."""

    joins_units = True

    def sum_of_squares(self, gradients: object) -> torch.Tensor:
        """One element."""
        return torch.zeros((), dtype=torch.float64)

    def adamw(self, shards: object, numbers: object, control: object) -> None:
        """Only values would change."""


def _unchecked(*_: object) -> None:
    """There is no memory to be checked."""


def _unguarded(unit: FlatUnit) -> None:
    """There are no values to be guarded."""


def _address(tensor: torch.Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return (storage << _APART_BITS) + int(tensor.storage_offset()) * tensor.element_size()
