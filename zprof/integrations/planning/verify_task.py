"""Run the task ``verify``: two steps of one rank at each stage, and the tenants at the peak of the second.

Parameters are the tensors that persist between steps: unsharded ones, or the shards in stage 3. Tensors that
stage 3 gathers are communication buffers. Gradients are those that autograd creates for parameters and those
in a shard's ``.grad``. fp32 master weights are optimizer state.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import nn

from zprof.collectors.torch_private import current_graph_task_id
from zprof.integrations.planning.child_process import WriteAnswer
from zprof.integrations.planning.fake_rank import (
    FakeRank,
    Settings,
    fake_world,
    make_engine_settings,
    make_gpt_config,
    make_gpt_rank,
    make_user_rank,
    use_fake_tensors,
)
from zprof.integrations.planning.storage_ledger import StorageLedger, StoragePeak, find_tensors, tap_storages
from zprof.integrations.planning.user_model import find_builder, find_differentiable_output, format_error_line
from zprof.model.errors import ZprofError
from zprof.model.job import Job
from zprof.model.tenants import Tenant
from zprof.reference_engine.comm.mesh import RankMesh


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
        """List the optimized tensors: fp32 parameters (their claim has precedence), else master weights."""
        return [tensor for group in self._rank.optimizer.param_groups for tensor in group["params"]]

    def _claim(self, tensors: Iterable[torch.Tensor], tenant: Tenant) -> None:
        for tensor in tensors:
            self._ledger.claim(tensor, tenant)

    def _claim_gradient(self, gradient: torch.Tensor) -> None:
        self._ledger.claim(gradient, Tenant.GRADIENTS)


#: In the first step the engine learns the order of its units; the second is like all later ones.
STEPS = 2
Loss = Callable[[nn.Module], torch.Tensor]


def measure_step(
    make: Callable[[], FakeRank], loss: Loss, *, micro_batches: int
) -> tuple[StoragePeak, Mapping[Tenant, int]]:
    """Return the peak of the second step, and the bytes by tenant at that moment.

    ``loss`` runs the forward on a new micro-batch.
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
    """Tracks when a unit runs, and claims the tensors that its recomputation leaves as activations."""

    def __init__(self, ledger: StorageLedger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._start_time = 0

    def enter(self, module: nn.Module, arguments: Any) -> None:
        """Record the start of the unit's forward or recomputation."""
        self._start_time = self._ledger.time
        self._ledger.location = f"{'recompute' if _in_backward() else 'forward'} of {self._name}"

    def leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Record the end of the forward or recomputation; the gradient of the output starts the backward."""
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
    """Write an answer for each stage as soon as it is verified, or its error if it fails."""
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
        result: torch.Tensor = model(tokens[:, :-1], tokens[:, 1:])
        return result

    return loss


def _make_user_loss(settings: Settings) -> Loss:
    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.zeros((settings.samples, settings.sequence), dtype=torch.int64)
        return find_differentiable_output(model(tokens)).sum()

    return loss
