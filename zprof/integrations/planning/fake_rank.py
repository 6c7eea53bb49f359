"""Build one rank of the reference engine in a fake process group, on fake tensors.

The engine itself is unchanged. Two things are patched out: its memory checks, because fake tensors have no
memory, and the guard that changes the class of parameters whose values are absent, because fake tensors need
their class.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from msgspec import Struct
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.collectors.torch_private import FakeTensor, FakeTensorMode, make_fake_store
from zprof.model.errors import BadInput
from zprof.model.job import ElementBytes, Job
from zprof.reference_engine import engine
from zprof.reference_engine.activation_checkpointing import ActivationConfig, make_block_runner
from zprof.reference_engine.comm.mesh import RankMesh, make_mesh
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.config import Keep, ZeroConfig
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.unit_split import find_default_units, split_into_units

#: More micro-batches have the same peak, because nothing more is kept after the second.
MAX_MICRO_BATCHES = 2
_DTYPES = {4: torch.float32, 2: torch.bfloat16}
#: AdamW's two moments, plus fp32 master weights for 2-byte parameters.
_STATE_BYTES = {4: 8, 2: 12}
#: Distance between storage addresses, so that no two storages can overlap.
_ADDRESS_BITS = 48
_FP32_BYTES = 4


class Settings(Struct, frozen=True, kw_only=True):
    """Engine settings for one stage of a job; ``sequence`` and ``samples`` are per micro-batch and rank."""

    zero: ZeroConfig
    activations: ActivationConfig
    samples: int
    sequence: int


def make_engine_settings(job: Job, stage: int) -> Settings:
    """Return the engine settings of a job.

    Raises:
        BadInput: the engine does not support the precision, or the batch is unknown.
    """
    samples, sequence = job.batch.samples, job.batch.sequence
    if samples is None or sequence is None:
        raise BadInput(
            "--verify runs a step, so it needs a batch size", hint="add --micro-batch and --sequence"
        )
    element_bytes, residual, overlap = job.element_bytes, job.residual, job.overlap
    dtype = _choose_dtype(element_bytes)
    zero = ZeroConfig(
        stage=stage,
        dtype=dtype,
        reduce_dtype=_DTYPES[element_bytes.reduced],
        micro_batches=min(job.batch.micro_batches, MAX_MICRO_BATCHES),
        forward_prefetch=overlap.prefetch,
        backward_prefetch=overlap.prefetch,
        keep_after_forward=Keep.LAST if overlap.keep_last else Keep.NONE,
        reduce_buckets=overlap.reductions_in_flight,
        constant_buffers=residual.constant_buffer_elements,
        defragment=residual.defragment,
        alignment=overlap.alignment_elements,
    )
    checkpoint = residual.checkpointing or residual.partition
    activations = ActivationConfig(
        checkpoint=checkpoint,
        partition=residual.partition,
        contiguous=residual.defragment and checkpoint,
    )
    return Settings(zero=zero, activations=activations, samples=samples, sequence=sequence)


def make_gpt_config(job: Job) -> GPTConfig:
    """Return the model of the job's shape.

    Raises:
        BadInput: the job has no shape, or a size is missing or invalid.
    """
    shape = job.shape
    if shape is None:
        raise BadInput(
            "--verify needs a model definition, but only the parameter count is known",
            hint="use --layers, --hidden and --vocabulary, a --preset, or --model module:function",
        )
    if not shape.vocabulary:
        raise BadInput("--verify builds the model, so it needs the vocabulary size", hint="add --vocabulary")
    try:
        return GPTConfig(
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads or choose_default_heads(shape.hidden),
            vocabulary=shape.vocabulary,
            context=shape.context or job.batch.sequence or 1,
            tied=shape.tied,
        )
    except ValueError as error:
        raise BadInput(f"--verify cannot build the model: {error}", hint="change that size") from None


def choose_default_heads(hidden: int) -> int:
    """Return the default number of heads: 64 wide as in GPT-2, or the next width that divides ``hidden``."""
    return next(heads for heads in range(max(hidden // 64, 1), 0, -1) if hidden % heads == 0)


def _choose_dtype(element_bytes: ElementBytes) -> torch.dtype:
    state = _STATE_BYTES.get(element_bytes.parameter)
    sizes = {element_bytes.parameter, element_bytes.gradient, element_bytes.gathered}
    if state is None or len(sizes) > 1 or element_bytes.reduced not in (4, element_bytes.parameter):
        raise BadInput(
            f"--verify does not support parameters of {element_bytes.parameter}, gradients of "
            f"{element_bytes.gradient}, gathers of {element_bytes.gathered} and reductions of "
            f"{element_bytes.reduced} bytes per element",
            hint="use --precision bf16 or fp32",
        )
    if element_bytes.optimizer_state != state:
        raise BadInput(
            f"--verify runs AdamW with {state} bytes of state per element, but the plan has "
            f"{element_bytes.optimizer_state}",
            hint="use --optimizer adam",
        )
    return _DTYPES[element_bytes.parameter]


class FakeRank(Struct, frozen=True, kw_only=True):
    """A model wrapped in the engine; ``units`` are the modules of its units by name, without the root."""

    model: ZeroModel
    optimizer: ZeroOptimizer
    units: dict[str, nn.Module]


@contextmanager
def fake_world(*, dp: int, mp: int) -> Iterator[RankMesh]:
    """Yield rank 0's mesh in a group whose collectives do nothing; enter it before making fake tensors."""
    dist.init_process_group("fake", store=make_fake_store(), rank=0, world_size=dp * mp)
    try:
        mesh = make_mesh(NativeComm, dp=dp, mp=mp)
        try:
            yield mesh
        finally:
            mesh.close()
    finally:
        dist.destroy_process_group()


@contextmanager
def use_fake_tensors(element_bytes: ElementBytes) -> Iterator[None]:
    """Create all tensors as fake CPU tensors inside the context, and make the engine work with them.

    If the planned optimizer makes no fp32 copy of gradients (like the engine's CUDA kernel), neither does the
    engine.
    """
    with ExitStack() as stack:
        if element_bytes.parameter < _FP32_BYTES and not element_bytes.gradient_copy:
            stack.enter_context(mock.patch.object(engine, "choose_update", return_value=_InPlaceUpdate()))
        stack.enter_context(mock.patch.object(engine, "check_model", _skip_check))
        stack.enter_context(mock.patch.object(FlatUnit, "_mark_ungathered", _skip_guard))
        stack.enter_context(mock.patch.object(FakeTensor, "data_ptr", _make_address, create=True))
        stack.enter_context(FakeTensorMode())
        yield


def make_gpt_rank(config: GPTConfig, settings: Settings, mesh: RankMesh) -> FakeRank:
    """Return a rank with the engine's own GPT."""
    run_block = make_block_runner(settings.activations, blocks=config.layers, mp=mesh.mp)
    return _make_rank(GPT(config, mesh.mp, run_block), settings, mesh)


def make_user_rank(model: nn.Module, settings: Settings, mesh: RankMesh) -> FakeRank:
    """Return a rank with a user's model; with checkpointing, its units save only their inputs."""
    if settings.activations.checkpoint:
        for unit in find_default_units(model):
            unit.forward = partial(  # inside the engine's hooks
                checkpoint, unit.forward, use_reentrant=False, preserve_rng_state=False
            )
    return _make_rank(model, settings, mesh)


def _make_rank(model: nn.Module, settings: Settings, mesh: RankMesh) -> FakeRank:
    """Wrap the model in the engine, with its default split into units."""
    units = {spec.name: spec.module for spec in split_into_units(model) if spec.module is not model}
    zero_model, optimizer = engine.zero(model, settings.zero, mesh.dp, mp=mesh.mp)
    return FakeRank(model=zero_model, optimizer=optimizer, units=units)


class _InPlaceUpdate:
    """AdamW that reads the gradient in place and allocates nothing, like a single GPU kernel."""

    joins_units = True

    def sum_of_squares(self, gradients: object) -> torch.Tensor:
        """Return one element, like the real update."""
        return torch.zeros((), dtype=torch.float64)

    def adamw(self, shards: object, numbers: object, control: object) -> None:
        """Do nothing, because only values would change."""


def _skip_check(*_: object) -> None:
    """Skip the engine's memory check, because there is no memory to check."""


def _skip_guard(unit: FlatUnit) -> None:
    """Skip the engine's guard, because there are no values to guard."""


def _make_address(tensor: torch.Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return (storage << _ADDRESS_BITS) + int(tensor.storage_offset()) * tensor.element_size()
