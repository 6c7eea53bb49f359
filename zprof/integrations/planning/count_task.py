"""Run the task ``count``: elements of a user's model by unit, and each unit's bytes for one micro-batch.

Units follow the reference engine's default split, which matches common FSDP2 wrapping: each child of an
``nn.ModuleList``, and the root with the rest. Tied parameters belong to the root and count once. Elements are
counted on the meta device. Bytes are measured on fake tensors if the model's forward method takes tokens
(int64 [samples, sequence]).

A saved tensor is attributed to the first unit that saves it, so the units sum to the model's total: a block's
input is saved by the block, not by the unit that produced it. Work bytes are the maximum of other live bytes,
without parameters and gradients, during the unit's forward or backward pass. A nested unit and its parameters
are not part of the enclosing unit.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from zprof.base.errors import BadInput
from zprof.collectors.record.torch_private import FakeTensorMode, current_graph_task_id
from zprof.integrations.planning.child_process import WriteAnswer
from zprof.integrations.planning.storage_ledger import (
    StorageLedger,
    StorageLifetime,
    find_tensors,
    tap_storages,
)
from zprof.integrations.planning.user_model import find_builder, find_differentiable_output, format_error_line
from zprof.model.job import Job, ModelUnit
from zprof.model.tenants import Tenant
from zprof.reference_engine.unit_split import ROOT, split_into_units

_HALF = {2: torch.bfloat16}


def count_units(task: dict[str, Any], write_answer: WriteAnswer) -> None:
    """Write an answer with all parameters, the frozen parameters, and the units.

    Raises:
        BadInput: the user's code fails, or the model has no parameters.
    """
    job = msgspec.convert(task["job"], Job)
    build = find_builder(task["model"])
    with torch.device("meta"):
        model = build()
    units = _measure_units(_split_model(task["model"], model), job, task["model"], build)
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    write_answer(
        {
            "parameters": sum(unit.elements for unit in units),
            "frozen": frozen,
            "units": msgspec.to_builtins(units),
        }
    )


def _split_model(spec: str, model: nn.Module) -> tuple[ModelUnit, ...]:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise BadInput(
                f"--model {spec}: parameter {name} has no shape yet",
                hint="set the sizes of lazy modules, or run them once before returning the model",
            )
    units = []
    for unit in split_into_units(model):
        if unit.parameters or unit.module is model:
            trained = [parameter.numel() for _, parameter in unit.parameters if parameter.requires_grad]
            elements = sum(parameter.numel() for _, parameter in unit.parameters)
            units.append(
                ModelUnit(
                    name=unit.name,
                    elements=elements,
                    frozen_elements=elements - sum(trained),
                    encloses=unit.name == ROOT,
                    largest_gradient_elements=max(trained, default=0),
                )
            )
    if not sum(unit.elements for unit in units):
        raise BadInput(f"--model {spec}: the model has no parameters", hint="there is nothing to plan")
    return tuple(units)


def _measure_units(
    units: tuple[ModelUnit, ...], job: Job, spec: str, build: Callable[[], nn.Module]
) -> tuple[ModelUnit, ...]:
    samples, sequence = job.batch.samples, job.batch.sequence
    if samples is None or sequence is None:
        return units
    try:
        sizes = measure_model(
            build, samples=samples, sequence=sequence, element_bytes=job.element_bytes.parameter
        )
    except BadInput as error:
        return _report_unknown(units, spec, error.message)
    except Exception as error:
        return _report_unknown(units, spec, format_error_line(error))
    return tuple(replace(unit, **sizes[unit.name]) for unit in units)


def _report_unknown(units: tuple[ModelUnit, ...], spec: str, reason: str) -> tuple[ModelUnit, ...]:
    print(
        f"zprof: the activation memory of {spec} is unknown: a step on int64 tokens "
        f"[samples, sequence] failed ({reason})",
        file=sys.stderr,
        flush=True,
    )
    return units


def _attention_flop(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **named: Any) -> int:
    """Count flop without the causal mask, like torch for all attention kernels."""
    flop: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return flop


#: Operators missing from torch's own table.
_EXTRA_FLOP_COUNTS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flop}


class _UnitRecord(Struct):
    """Measurements of one unit; ``forward`` and ``backward``: time spans of the passes."""

    saved: list[StorageLifetime] = field(default_factory=list)
    checkpoint_bytes: int = 0
    forward_flop: int = 0
    early_gradient_elements: int = 0
    forward: list[tuple[int, int]] = field(default_factory=list)
    backward: list[tuple[int, int]] = field(default_factory=list)


def measure_model(
    build: Callable[[], nn.Module], *, samples: int, sequence: int, element_bytes: int
) -> Mapping[str, Mapping[str, Any]]:
    """Measure the sizes of each unit, as fields of :class:`~zprof.model.job.ModelUnit`."""
    ledger, flops = StorageLedger(), FlopCounterMode(display=False, custom_mapping=_EXTRA_FLOP_COUNTS)
    with FakeTensorMode():
        model = build()
        dtype = _HALF.get(element_bytes)
        for parameter in model.parameters():
            if dtype is not None and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        tokens = torch.zeros((samples, sequence), dtype=torch.int64)
        tracker = _UnitCounter(model, ledger, flops)
        with flops, tap_storages(ledger), tracker.install_hooks():
            _claim_parameters(model, ledger, tracker.count_early_gradient)
            # Keep no other reference to the output, as in a training loop.
            loss = find_differentiable_output(model(tokens)).sum()
            tracker.end_forward()
            loss.backward()  # type: ignore[no-untyped-call]
            tracker.end_backward()
    sizes = {}
    for name, record in tracker.records.items():
        saved_bytes = sum(life.bytes for life in record.saved)
        sizes[name] = {
            "saved_bytes": saved_bytes,
            "checkpoint_bytes": saved_bytes if name == ROOT else record.checkpoint_bytes,
            "forward_work_bytes": ledger.measure_tenant_peak(Tenant.TEMPORARY_BUFFERS, record.forward),
            "backward_work_bytes": ledger.measure_tenant_peak(Tenant.TEMPORARY_BUFFERS, record.backward),
            "forward_flop": float(record.forward_flop) if record.forward_flop else None,
            "early_gradient_elements": record.early_gradient_elements,
        }
    return sizes


def _claim_parameters(model: nn.Module, ledger: StorageLedger, on_gradient: Callable[[int], None]) -> None:
    def claim_gradient(gradient: torch.Tensor) -> None:
        ledger.claim(gradient, Tenant.GRADIENTS)
        on_gradient(gradient.numel())

    def claim_accumulated(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # autograd may have copied the gradient
            ledger.claim(parameter.grad, Tenant.GRADIENTS)

    for tensor in (*model.parameters(), *model.buffers()):
        ledger.claim(tensor, Tenant.PARAMETERS)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(claim_gradient)  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(claim_accumulated)  # type: ignore[no-untyped-call]


class _UnitCounter:
    """Tracks the running unit and records its bytes, flop and gradients."""

    def __init__(self, model: nn.Module, ledger: StorageLedger, flops: FlopCounterMode) -> None:
        self._ledger = ledger
        self._flops = flops
        self._modules = {
            spec.name: spec.module for spec in split_into_units(model) if spec.module is not model
        }
        self.records = {ROOT: _UnitRecord(), **{name: _UnitRecord() for name in self._modules}}
        self._running = [ROOT]
        self._start_time = ledger.time
        self._start_flop = 0
        self._inner_started = False
        ledger.on_saved = self._record_saved

    @contextmanager
    def install_hooks(self) -> Iterator[None]:
        """Track the units' forward and backward passes inside the context."""
        handles = []
        for name, module in self._modules.items():
            handles.append(module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(self._leave, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def end_forward(self) -> None:
        """End the forward pass of the running unit."""
        record, flop = self.records[self._running[-1]], self._flops.get_total_flops()
        record.forward.append((self._start_time, self._ledger.time))
        record.forward_flop += flop - self._start_flop
        self._start_time, self._start_flop = self._ledger.time, flop

    def end_backward(self) -> None:
        """End the backward pass of the running unit."""
        self.records[self._running[-1]].backward.append((self._start_time, self._ledger.time))
        self._start_time = self._ledger.time

    def count_early_gradient(self, elements: int) -> None:
        """Count a root gradient if no other unit's backward pass has started."""
        if not self._inner_started:
            self.records[ROOT].early_gradient_elements += elements

    def _record_saved(self, life: StorageLifetime) -> None:
        if current_graph_task_id() == -1:
            self.records[self._running[-1]].saved.append(life)

    def _enter(self, name: str, module: nn.Module, arguments: Any, kwargs: Any) -> None:
        if current_graph_task_id() != -1:
            return  # a recomputation
        self.end_forward()
        self._running.append(name)
        inputs = {self._ledger.record_tensor(tensor) for tensor in find_tensors((arguments, kwargs))}
        self.records[name].checkpoint_bytes += sum(life.bytes for life in inputs)

    def _leave(self, name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if current_graph_task_id() != -1:
            return
        self.end_forward()
        self._running.pop()
        for tensor in find_tensors(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(partial(self._enter_backward, name))

    def _enter_backward(self, name: str, gradients: object) -> None:
        self.end_backward()
        self._inner_started = True
        self._running = [name]
