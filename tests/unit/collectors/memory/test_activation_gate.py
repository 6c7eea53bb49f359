"""Activations against what autograd itself says that it saved, and two faults that the gate must see."""

import pytest
import torch
from memory_window import record, small_model
from torch import nn

from zprof.analysis.memory import live_bytes
from zprof.collectors.memory.hooks import Hooks
from zprof.model.tenants import Tenant


def saved_bytes(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the storages that autograd keeps for the backward, the parameters' own left out."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(x).square().mean()
        assert loss.requires_grad
    return sum(storage.nbytes() for key, storage in storages.items() if key not in own)


def gate() -> None:
    """At the peak of a forward and backward the activations are what autograd saved, up to scalars."""
    model = small_model()
    x = torch.randn(512, 64)
    expected = saved_bytes(model, x)
    window = record(lambda: model(x).square().mean().backward(), model)
    activations = window.lives.peak().tenants[Tenant.ACTIVATIONS]
    assert expected <= activations <= expected + 64


def test_activations_are_what_autograd_saved() -> None:
    gate()


def test_without_the_hooks_the_retained_rule_still_finds_what_the_window_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the batch, which was there before the window, is then without an owner."""
    monkeypatch.setattr(Hooks, "_save", lambda self, tensor: (tensor.detach(), None))
    with pytest.raises(AssertionError):
        gate()


def test_without_hooks_and_rule_the_gate_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hooks, "_save", lambda self, tensor: (tensor.detach(), None))
    monkeypatch.setattr(live_bytes, "name_retained_activations", lambda blocks, claimed, phases: blocks)
    model = small_model()
    window = record(lambda: model(torch.randn(512, 64)).square().mean().backward(), model)
    assert window.lives.peak().tenants[Tenant.ACTIVATIONS] == 0
