"""Runs a model's forward and backward once on tensors without memory, and takes it apart by unit.

What a unit saves counts where it is saved first, so that the units sum to what the model keeps: the input of
a block is saved by the block, not by the one that made it.  Work is what is live beside that and beside
parameters and gradients: the most of it while the unit's forward, or its backward, runs.  A unit inside of
another one is taken out of it, as its parameters are.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from zprof.integrations.planning.fake.ledger import Ledger, Life, tensors_of
from zprof.integrations.planning.fake.outputs import output_of
from zprof.integrations.planning.fake.tap import tapped
from zprof.model.tenants import Tenant
from zprof.reference_engine.units.split import ROOT, split

_HALF = {2: torch.bfloat16}


def _attention_flop(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **named: Any) -> int:
    """Without regard to the causal mask, as torch counts all its attention kernels."""
    flop: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return flop


#: What torch's own table lacks.
_FLOP = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flop}


@dataclass(slots=True)
class _Seen:
    """Of one unit.  ``stretches``: times in which its forward, or its backward, ran."""

    saved: list[Life] = field(default_factory=list)
    checkpoint_bytes: int = 0
    forward_flop: int = 0
    early_gradient_elements: int = 0
    forward: list[tuple[int, int]] = field(default_factory=list)
    backward: list[tuple[int, int]] = field(default_factory=list)


def measured(
    build: Callable[[], nn.Module], *, samples: int, sequence: int, bytes_each: int
) -> Mapping[str, Mapping[str, Any]]:
    """Sizes of each unit, as fields of :class:`~zprof.model.planning.job.Unit`."""
    ledger, flops = Ledger(), FlopCounterMode(display=False, custom_mapping=_FLOP)
    with FakeTensorMode():
        model = build()
        _to_precision(model, _HALF.get(bytes_each))
        tokens = torch.zeros((samples, sequence), dtype=torch.int64)
        watch = _Watch(model, ledger, flops)
        with flops, tapped(ledger), watch.hooked():
            _claim_parameters(model, ledger, watch.gradient_is_made)
            loss = output_of(model(tokens)).sum()  # nobody else holds the output, as in a training loop
            watch.forward_is_over()
            loss.backward()  # type: ignore[no-untyped-call]
            watch.backward_is_over()
    return {name: _sizes(seen, watch.seen[ROOT], ledger) for name, seen in watch.seen.items()}


def _to_precision(model: nn.Module, dtype: torch.dtype | None) -> None:
    """As the engine does: parameters only."""
    for parameter in model.parameters():
        if dtype is not None and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def _claim_parameters(model: nn.Module, ledger: Ledger, made_one: Callable[[int], None]) -> None:
    def gradient(made: torch.Tensor) -> None:
        ledger.claim(made, Tenant.GRADIENTS)
        made_one(made.numel())

    def accumulated(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # autograd may have copied what it made
            ledger.claim(parameter.grad, Tenant.GRADIENTS)

    for tensor in (*model.parameters(), *model.buffers()):
        ledger.claim(tensor, Tenant.PARAMETERS)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(gradient)  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]


class _Watch:
    """Knows which unit runs, and writes down what it does."""

    def __init__(self, model: nn.Module, ledger: Ledger, flops: FlopCounterMode) -> None:
        self._ledger = ledger
        self._flops = flops
        self._modules = {spec.name: spec.module for spec in split(model) if spec.module is not model}
        self.seen = {ROOT: _Seen(), **{name: _Seen() for name in self._modules}}
        self._running = [ROOT]
        self._since = ledger.time
        self._flop_since = 0
        self._inner_began = False
        ledger.on_saved = self._saved

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Within, the units tell when they run."""
        handles = []
        for name, module in self._modules.items():
            handles.append(module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(self._leave, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def forward_is_over(self) -> None:
        """What comes now is the backward, the root's first."""
        self._close_forward()

    def backward_is_over(self) -> None:
        """Nothing comes any more."""
        self._close_backward()

    def gradient_is_made(self, elements: int) -> None:
        """Before the backward of other units it is the root's."""
        if not self._inner_began:
            self.seen[ROOT].early_gradient_elements += elements

    def _saved(self, life: Life) -> None:
        if torch._C._current_graph_task_id() == -1:
            self.seen[self._running[-1]].saved.append(life)

    def _enter(self, name: str, module: nn.Module, arguments: Any, named: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # it is computed again
        self._close_forward()
        self._running.append(name)
        inputs = {self._ledger.see(tensor) for tensor in tensors_of((arguments, named))}
        self.seen[name].checkpoint_bytes += sum(life.bytes for life in inputs)

    def _leave(self, name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return
        self._close_forward()
        self._running.pop()
        for tensor in tensors_of(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(partial(self._backward, name))

    def _backward(self, name: str, gradients: object) -> None:
        self._close_backward()
        self._inner_began = True
        self._running = [name]

    def _close_forward(self) -> None:
        seen, flop = self.seen[self._running[-1]], self._flops.get_total_flops()
        seen.forward.append((self._since, self._ledger.time))
        seen.forward_flop += flop - self._flop_since
        self._since, self._flop_since = self._ledger.time, flop

    def _close_backward(self) -> None:
        self.seen[self._running[-1]].backward.append((self._since, self._ledger.time))
        self._since = self._ledger.time


def _sizes(seen: _Seen, root: _Seen, ledger: Ledger) -> Mapping[str, Any]:
    saved_bytes = sum(life.bytes for life in seen.saved)
    return {
        "saved_bytes": saved_bytes,
        "checkpoint_bytes": saved_bytes if seen is root else seen.checkpoint_bytes,
        "forward_work_bytes": ledger.most_of(Tenant.TEMPORARY_BUFFERS, seen.forward),
        "backward_work_bytes": ledger.most_of(Tenant.TEMPORARY_BUFFERS, seen.backward),
        "forward_flop": float(seen.forward_flop) if seen.forward_flop else None,
        "early_gradient_elements": seen.early_gradient_elements,
    }
