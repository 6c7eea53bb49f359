"""Run the task ``verify``: two steps of one rank at each stage, and the tenants at the second step's peak.

Parameters are the tensors that persist between steps: unsharded parameters, or shards in stage 3. Tensors
that stage 3 gathers are communication buffers. Gradients are the tensors that autograd creates for
parameters, and a shard's ``.grad``. fp32 master weights are optimizer state.

The rank of the reference engine is built in a fake process group, on fake tensors. The engine code is
unchanged. Two parts are patched out: memory checks, because fake tensors have no memory, and the guard that
changes the class of parameters without values, because fake tensors need their class.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
from msgspec import Struct
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.base.errors import BadInput, ZprofError
from zprof.collectors.record.torch_private import (
    FakeTensor,
    FakeTensorMode,
    current_graph_task_id,
    make_fake_store,
)
from zprof.integrations.planning.child_process import WriteAnswer
from zprof.integrations.planning.storage_ledger import StorageLedger, StoragePeak, find_tensors, tap_storages
from zprof.integrations.planning.user_model import find_builder, find_differentiable_output, format_error_line
from zprof.model.job import ElementBytes, Job
from zprof.model.tenants import Tenant
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

#: More micro-batches have the same peak, because nothing is added after the second.
MAX_MICRO_BATCHES = 2
_DTYPES = {4: torch.float32, 2: torch.bfloat16}
#: AdamW's two moments, plus fp32 master weights for 2-byte parameters.
_STATE_BYTES = {4: 8, 2: 12}
#: Distance between storage addresses, to prevent overlap.
_ADDRESS_BITS = 48
_FP32_BYTES = 4


class Settings(Struct, frozen=True, kw_only=True):
    """Engine settings for one stage of a job; ``sequence`` and ``samples``: per micro-batch and rank."""

    zero: ZeroConfig
    activations: ActivationConfig
    samples: int
    sequence: int


class FakeRank(Struct, frozen=True, kw_only=True):
    """A model wrapped in the engine; ``units``: unit modules by name, without the root."""

    model: ZeroModel
    optimizer: ZeroOptimizer
    units: dict[str, nn.Module]


class _InPlaceUpdate:
    """AdamW that reads the gradient in place without allocating, like a single GPU kernel."""

    joins_units = True

    def sum_of_squares(self, gradients: object) -> torch.Tensor:
        """Return one element, like the real operation."""
        return torch.zeros((), dtype=torch.float64)

    def adamw(self, shards: object, numbers: object, control: object) -> None:
        """Do nothing: the real update changes only values."""


class OwnerClaims:
    """Claims storages at step boundaries, and each gradient as soon as it is created."""

    def __init__(self, ledger: StorageLedger, rank: FakeRank) -> None:
        self._ledger = ledger
        self._rank = rank
        parameters = [parameter for unit in rank.model.units for parameter in unit.parameters]
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(self._claim_gradient)  # type: ignore[no-untyped-call]

    def claim_at_boundary(self) -> None:
        """Claim parameters, optimizer state and gradients between two steps."""
        for unit in self._rank.model.units:
            if unit.policy.shard_parameters:
                self._ledger.mark_gathered(unit.full)
                self._ledger.claim(unit.shard, Tenant.PARAMETERS)
            else:
                self._ledger.claim(unit.full, Tenant.PARAMETERS)
        for buffer in self._rank.model.module.buffers():
            self._ledger.claim(buffer, Tenant.PARAMETERS)
        for state in self._rank.optimizer.state.values():
            self._claim(find_tensors(state), Tenant.OPTIMIZER_STATE)
        self._claim(self._list_optimized(), Tenant.OPTIMIZER_STATE)
        self.claim_gradients()

    def claim_gradients(self) -> None:
        """Claim the complete gradients before the optimizer step."""
        owners = [*self._rank.model.parameters(), *self._list_optimized()]
        self._claim((owner.grad for owner in owners if owner.grad is not None), Tenant.GRADIENTS)

    def _list_optimized(self) -> list[torch.Tensor]:
        """List the optimized tensors: fp32 parameters (whose claim takes precedence), else master weights."""
        return [tensor for group in self._rank.optimizer.param_groups for tensor in group["params"]]

    def _claim(self, tensors: Iterable[torch.Tensor], tenant: Tenant) -> None:
        for tensor in tensors:
            self._ledger.claim(tensor, tenant)

    def _claim_gradient(self, gradient: torch.Tensor) -> None:
        self._ledger.claim(gradient, Tenant.GRADIENTS)


#: In the first step, the engine learns the unit order; later steps are like the second.
STEPS = 2


Loss = Callable[[nn.Module], torch.Tensor]


def measure_step(
    make: Callable[[], FakeRank], loss: Loss, *, micro_batches: int
) -> tuple[StoragePeak, Mapping[Tenant, int]]:
    """Return the peak of the second step, and the bytes by tenant at that moment.

    ``loss`` runs the forward pass on a new micro-batch.
    """
    ledger = StorageLedger()
    with tap_storages(ledger):
        rank = make()
        owners = OwnerClaims(ledger, rank)
        with _track_location(ledger, rank):
            for _ in range(STEPS):
                owners.claim_at_boundary()
                ledger.reset_peak()
                _run_step(rank, loss, micro_batches, ledger, owners)
        peak = ledger.peak
        return peak, ledger.measure_tenants_at(peak.time)


def _run_step(
    rank: FakeRank, loss: Loss, micro_batches: int, ledger: StorageLedger, owners: OwnerClaims
) -> None:
    ledger.location = "zero_grad"
    rank.optimizer.zero_grad()
    losses = []
    for _ in range(micro_batches):
        ledger.location, start_time = "forward of root", ledger.time
        output = loss(rank.model)
        ledger.claim_activations_since(start_time)
        ledger.location = "backward of root"
        output.backward()  # type: ignore[no-untyped-call]
        losses.append(output.detach())
    ledger.location = "optimizer"
    owners.claim_gradients()
    rank.optimizer.step()
    torch.stack(losses).mean()


@contextmanager
def _track_location(ledger: StorageLedger, rank: FakeRank) -> Iterator[None]:
    """Keep the ledger's location (phase and unit) up to date inside the context."""
    handles = []
    for name, module in rank.units.items():
        tracker = _UnitTracker(ledger, name)
        handles.append(module.register_forward_pre_hook(tracker.enter, prepend=True))
        handles.append(module.register_forward_hook(tracker.leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_backward() -> bool:
    return current_graph_task_id() != -1


class _UnitTracker:
    """Tracks when a unit runs, and claims tensors left by its recomputation as activations."""

    def __init__(self, ledger: StorageLedger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._start_time = 0

    def enter(self, module: nn.Module, arguments: Any) -> None:
        """Record the start of the unit's forward pass or recomputation."""
        self._start_time = self._ledger.time
        self._ledger.location = f"{'recompute' if _in_backward() else 'forward'} of {self._name}"

    def leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Record the end of the forward pass or recomputation; the output gradient starts the backward."""
        if _in_backward():
            self._ledger.claim_activations_since(self._start_time)
            self._ledger.location = f"backward of {self._name}"
            return
        self._ledger.location = "forward of root"
        for tensor in find_tensors(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._enter_backward)

    def _enter_backward(self, gradients: object) -> None:
        self._ledger.location = f"backward of {self._name}"


Build = Callable[[Settings, RankMesh], FakeRank]


def verify_stages(task: dict[str, Any], write_answer: WriteAnswer) -> None:
    """Write an answer for each stage as soon as it is verified, or the error if it fails."""
    job = msgspec.convert(task["job"], Job)
    build, vocabulary = _make_builder(job, task["model"])
    for stage in task["stages"]:
        print(f"zprof: verifying stage {stage} on fake tensors", file=sys.stderr, flush=True)
        try:
            write_answer(_verify_stage(job, stage, build, vocabulary))
        except ZprofError:
            raise
        except Exception as error:
            write_answer({"stage": stage, "error": format_error_line(error)})


def _make_builder(job: Job, model: str | None) -> tuple[Build, int | None]:
    """Return the builder of the rank, and the vocabulary (None for a user's model)."""
    if model is None:
        config = make_gpt_config(job)
        return (lambda settings, mesh: make_gpt_rank(config, settings, mesh)), config.vocabulary
    build = find_builder(model)
    return (lambda settings, mesh: make_user_rank(build(), settings, mesh)), None


def _verify_stage(job: Job, stage: int, build: Build, vocabulary: int | None) -> dict[str, Any]:
    settings = make_engine_settings(job, stage)
    loss = _make_user_loss(settings) if vocabulary is None else _make_gpt_loss(settings, vocabulary)
    with fake_world(dp=job.degrees.dp, mp=job.degrees.mp) as mesh, use_fake_tensors(job.element_bytes):
        peak, tenants = measure_step(
            lambda: build(settings, mesh), loss, micro_batches=settings.zero.micro_batches
        )
    return {"stage": stage, "peak_bytes": peak.bytes, "peak_at": peak.location, "tenants": dict(tenants)}


def _make_gpt_loss(settings: Settings, vocabulary: int) -> Loss:
    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.randint(vocabulary, (settings.samples, settings.sequence + 1))
        return model(tokens[:, :-1], tokens[:, 1:])

    return loss


def _make_user_loss(settings: Settings) -> Loss:
    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.zeros((settings.samples, settings.sequence), dtype=torch.int64)
        return find_differentiable_output(model(tokens)).sum()

    return loss


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
        # Default number of heads: width 64 as in GPT-2, or the next width that divides ``hidden``.
        return GPTConfig(
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads
            or next(heads for heads in range(max(shape.hidden // 64, 1), 0, -1) if shape.hidden % heads == 0),
            vocabulary=shape.vocabulary,
            context=shape.context or job.batch.sequence or 1,
            tied=shape.tied,
        )
    except ValueError as error:
        raise BadInput(f"--verify cannot build the model: {error}", hint="change that size") from None


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


@contextmanager
def fake_world(*, dp: int, mp: int) -> Iterator[RankMesh]:
    """Yield rank 0's mesh in a group with no-op collectives; enter it before making fake tensors."""
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
    """Create all tensors as fake CPU tensors inside the context, and adapt the engine to fake tensors.

    If the planned optimizer makes no fp32 copy of gradients (like the engine's CUDA kernel), neither does the
    engine.
    """
    with ExitStack() as stack:
        if element_bytes.parameter < _FP32_BYTES and not element_bytes.gradient_copy:
            stack.enter_context(mock.patch.object(engine, "choose_update", return_value=_InPlaceUpdate()))
        # Fake tensors have no memory to check and no values to guard.
        stack.enter_context(mock.patch.object(engine, "check_model", _do_nothing))
        stack.enter_context(mock.patch.object(FlatUnit, "_mark_ungathered", _do_nothing))
        stack.enter_context(mock.patch.object(FakeTensor, "data_ptr", _make_address, create=True))
        stack.enter_context(FakeTensorMode())
        yield


def make_gpt_rank(config: GPTConfig, settings: Settings, mesh: RankMesh) -> FakeRank:
    """Return a rank with the engine's own GPT."""
    run_block = make_block_runner(settings.activations, blocks=config.layers, mp=mesh.mp)
    return _make_rank(GPT(config, mesh.mp, run_block), settings, mesh)


def make_user_rank(model: nn.Module, settings: Settings, mesh: RankMesh) -> FakeRank:
    """Return a rank with a user's model; with checkpointing, units save only their inputs."""
    if settings.activations.checkpoint:
        for unit in find_default_units(model):
            unit.forward = partial(  # inside the engine's hooks
                checkpoint, unit.forward, use_reentrant=False, preserve_rng_state=False
            )
    return _make_rank(model, settings, mesh)


def _make_rank(model: nn.Module, settings: Settings, mesh: RankMesh) -> FakeRank:
    """Wrap the model in the engine with the default split into units."""
    units = {spec.name: spec.module for spec in split_into_units(model) if spec.module is not model}
    zero_model, optimizer = engine.zero(model, settings.zero, mesh.dp, mp=mesh.mp)
    return FakeRank(model=zero_model, optimizer=optimizer, units=units)


def _do_nothing(*_: object) -> None:
    """Replace a part of the engine by nothing."""


def _make_address(tensor: torch.Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return (storage << _ADDRESS_BITS) + int(tensor.storage_offset()) * tensor.element_size()
