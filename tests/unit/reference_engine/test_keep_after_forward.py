"""Which units keep their gathered parameters between forward and backward, and what that moves."""

import pytest
import torch
from pitfall_models import UNITS, Layer, Layers, check_training, gathered_bytes, in_engine, inputs, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.reference_engine.config import Keep

BACKWARD = ["root", "layers.2", "layers.1", "layers.0"]
AGAIN = {Keep.NONE: BACKWARD, Keep.LAST: ["root", "layers.1", "layers.0"], Keep.ALL: []}
LEFT = {Keep.NONE: [], Keep.LAST: ["layers.2"], Keep.ALL: UNITS}


def recompute(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(layer, x, use_reentrant=False)


class Recomputed(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return recompute(super().forward, x)


def present(model) -> list[str]:
    return [unit.name for unit in model.units if unit.full.untyped_storage().nbytes()]


@pytest.mark.parametrize(
    ("make", "prefetch"),
    [(Layers, 0), (lambda: Layers(Recomputed), 2), (lambda: Layers(call=recompute), 1)],
    ids=["plain", "recomputed inside", "recomputed outside"],
)
@pytest.mark.parametrize("keep", Keep)
def test_what_is_kept_is_not_gathered_a_second_time_and_changes_no_number(keep, make, prefetch):
    settings = {"keep_after_forward": keep, "forward_prefetch": prefetch, "backward_prefetch": prefetch}
    check_training(make, 3, **settings)
    model, optimizer, comm = in_engine(make(), 3, 2, **settings)
    for step in range(3):
        train(model, optimizer, step)
        assert comm.launches("all_gather") == UNITS + AGAIN[keep]
        assert gathered_bytes(model) == 0
        comm.take_events()


@pytest.mark.parametrize("keep", Keep)
def test_between_forward_and_backward_there_is_what_is_kept_and_no_more(keep):
    model, _, _ = in_engine(Layers(), 3, keep_after_forward=keep)
    counts = []
    for layer in model.module.layers:
        layer.register_forward_pre_hook(lambda *_: counts.append(len(present(model))))
    for step in range(2):
        loss = model(inputs(step))
        assert present(model) == LEFT[keep]
        loss.backward()
        model.zero_grad()
    assert max(counts) == (4 if keep == Keep.ALL else 3)  # the root, the one in use and the prefetched


def test_what_a_forward_without_backward_kept_is_old_after_the_step():
    model, optimizer, _ = in_engine(Layers(), 3, keep_after_forward=Keep.ALL)
    model(inputs(0)).backward()
    forgotten = model(inputs(1))
    assert present(model) == UNITS
    before = model.state_dict()
    forgotten = model(inputs(1))
    optimizer.step()
    assert present(model) == []
    after = model.state_dict()
    assert not any(torch.equal(after[name], before[name]) for name in before)
    del forgotten


def test_one_unit_that_is_the_whole_model_is_the_last():
    for keep, gathers in ((Keep.NONE, 2), (Keep.LAST, 1), (Keep.ALL, 1)):
        model, optimizer, comm = in_engine(Layers(), 3, 2, units=[], keep_after_forward=keep)
        train(model, optimizer)
        assert comm.launches("all_gather") == ["root"] * gathers


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_part_or_an_evaluation_without_gradients_is_given_back_at_once(mode):
    def without_gradients(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with mode():
            y = layer(x)
        return y.clone() if layer is model.module.layers[0] else layer(x)

    model, _, _ = in_engine(Layers(call=without_gradients), 3, 2, keep_after_forward=Keep.ALL)
    loss = model(inputs(0))
    assert present(model) == ["root", "layers.1", "layers.2"]
    loss.backward()
    with mode():
        model(inputs(0))
    assert present(model) == []
