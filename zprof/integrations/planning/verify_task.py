"""Run the task ``verify``: two steps of one rank at each stage, and the tenants at the peak of the second.

Parameters are the tensors stored at rest: whole ones, or the shards in stage 3; tensors that stage 3 gathers
are communication buffers. Gradients are those that autograd makes for parameters and those in a shard's
``.grad``. fp32 master weights are optimizer state.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import nn

from zprof.collectors.torch_private import current_graph_task_id
from zprof.integrations.planning.child_process import Tell
from zprof.integrations.planning.fake_rank import (
    Rank,
    Settings,
    engine_settings,
    fake_world,
    gpt_config,
    make_gpt_rank,
    make_user_rank,
    without_memory,
)
from zprof.integrations.planning.storage_ledger import Peak, StorageLedger, find_tensors, tap_storages
from zprof.integrations.planning.user_model import differentiable_output, find_builder, first_line
from zprof.model.errors import ZprofError
from zprof.model.job import Job
from zprof.model.tenants import Tenant
from zprof.reference_engine.comm.mesh import Mesh


class Owners:
    """Claims storages at step boundaries, and each gradient as soon as it is made."""

    def __init__(self, ledger: StorageLedger, rank: Rank) -> None:
        self._ledger = ledger
        self._rank = rank
        parameters = [parameter for unit in rank.model.units for parameter in unit.parameters]
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def at_boundary(self) -> None:
        """Claim parameters, optimizer state and gradients between two steps."""
        for unit in self._rank.model.units:
            if unit.policy.shard_parameters:
                self._ledger.gathers(unit.full)
                self._ledger.claim(unit.shard, Tenant.PARAMETERS)
            else:
                self._ledger.claim(unit.full, Tenant.PARAMETERS)
        for buffer in self._rank.model.module.buffers():
            self._ledger.claim(buffer, Tenant.PARAMETERS)
        for state in self._rank.optimizer.state.values():
            self._claim(find_tensors(state), Tenant.OPTIMIZER_STATE)
        self._claim(self._optimized(), Tenant.OPTIMIZER_STATE)
        self.before_optimizer()

    def before_optimizer(self) -> None:
        """Claim gradients, which are complete."""
        owners = [*self._rank.model.parameters(), *self._optimized()]
        self._claim((owner.grad for owner in owners if owner.grad is not None), Tenant.GRADIENTS)

    def _optimized(self) -> list[torch.Tensor]:
        """Return the optimized tensors: fp32 parameters (their claim wins), else the master weights."""
        return [tensor for group in self._rank.optimizer.param_groups for tensor in group["params"]]

    def _claim(self, tensors: Iterable[torch.Tensor], tenant: Tenant) -> None:
        for tensor in tensors:
            self._ledger.claim(tensor, tenant)

    def _gradient(self, gradient: torch.Tensor) -> None:
        self._ledger.claim(gradient, Tenant.GRADIENTS)


#: The first pass teaches the engine the order of its units; the second is like all later ones.
STEPS = 2
Loss = Callable[[nn.Module], torch.Tensor]


def count_step(
    make: Callable[[], Rank], loss: Loss, *, micro_batches: int
) -> tuple[Peak, Mapping[Tenant, int]]:
    """Return the peak of a step after the first, and the bytes by tenant at that moment.

    ``loss`` runs the forward on a new micro-batch.
    """
    ledger = StorageLedger()
    with tap_storages(ledger):
        rank = make()
        owners = Owners(ledger, rank)
        with _named_places(ledger, rank):
            for _ in range(STEPS):
                owners.at_boundary()
                ledger.begin()
                _run_step(rank, loss, micro_batches, ledger, owners)
        peak = ledger.peak
        return peak, ledger.tenants_at(peak.time)


def _run_step(rank: Rank, loss: Loss, micro_batches: int, ledger: StorageLedger, owners: Owners) -> None:
    ledger.place = "zero_grad"
    rank.optimizer.zero_grad()
    losses = []
    for _ in range(micro_batches):
        ledger.place, begun = "forward of root", ledger.time
        made = loss(rank.model)
        ledger.keep_since(begun)
        ledger.place = "backward of root"
        made.backward()  # type: ignore[no-untyped-call]
        losses.append(made.detach())
    ledger.place = "optimizer"
    owners.before_optimizer()
    rank.optimizer.step()
    torch.stack(losses).mean()


@contextmanager
def _named_places(ledger: StorageLedger, rank: Rank) -> Iterator[None]:
    """Keep the ledger's place up to date with phase and unit while the context is open."""
    handles = []
    for name, module in rank.units.items():
        unit = _UnitPlace(ledger, name)
        handles.append(module.register_forward_pre_hook(unit.enter, prepend=True))
        handles.append(module.register_forward_hook(unit.leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_backward() -> bool:
    return current_graph_task_id() != -1


class _UnitPlace:
    """Records when a unit runs, and claims tensors left by its recomputation as activations."""

    def __init__(self, ledger: StorageLedger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._begun = 0

    def enter(self, module: nn.Module, arguments: Any) -> None:
        """Record the start of the unit's forward or recomputation."""
        self._begun = self._ledger.time
        self._ledger.place = f"{'recompute' if _in_backward() else 'forward'} of {self._name}"

    def leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Record the end of the forward or recomputation; the gradient of the output starts the backward."""
        if _in_backward():
            self._ledger.keep_since(self._begun)
            self._ledger.place = f"backward of {self._name}"
            return
        self._ledger.place = "forward of root"
        for tensor in find_tensors(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._backward)

    def _backward(self, gradients: object) -> None:
        self._ledger.place = f"backward of {self._name}"


Build = Callable[[Settings, Mesh], Rank]


def verify_stages(task: dict[str, Any], tell: Tell) -> None:
    """Answer for each stage as soon as it is verified, or with the error of a stage that fails."""
    job = msgspec.convert(task["job"], Job)
    build, vocabulary = _make_builder(job, task["model"])
    for stage in task["stages"]:
        print(f"zprof: verifying stage {stage} on tensors without memory", file=sys.stderr, flush=True)
        try:
            tell(_verify_stage(job, stage, build, vocabulary))
        except ZprofError:
            raise
        except Exception as error:
            tell({"stage": stage, "error": first_line(error)})


def _make_builder(job: Job, model: str | None) -> tuple[Build, int | None]:
    """Return the builder of the rank, and the vocabulary (None for a user's model)."""
    if model is None:
        config = gpt_config(job)
        return (lambda settings, mesh: make_gpt_rank(config, settings, mesh)), config.vocabulary
    build = find_builder(model)
    return (lambda settings, mesh: make_user_rank(build(), settings, mesh)), None


def _verify_stage(job: Job, stage: int, build: Build, vocabulary: int | None) -> dict[str, Any]:
    settings = engine_settings(job, stage)
    loss = _user_loss(settings) if vocabulary is None else _gpt_loss(settings, vocabulary)
    with fake_world(dp=job.degrees.dp, mp=job.degrees.mp) as mesh, without_memory(job.element_bytes):
        peak, tenants = count_step(
            lambda: build(settings, mesh), loss, micro_batches=settings.zero.micro_batches
        )
    return {"stage": stage, "peak_bytes": peak.bytes, "place": peak.place, "tenants": dict(tenants)}


def _gpt_loss(settings: Settings, vocabulary: int) -> Loss:
    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.randint(vocabulary, (settings.samples, settings.sequence + 1))
        made: torch.Tensor = model(tokens[:, :-1], tokens[:, 1:])
        return made

    return loss


def _user_loss(settings: Settings) -> Loss:
    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.zeros((settings.samples, settings.sequence), dtype=torch.int64)
        return differentiable_output(model(tokens)).sum()

    return loss
