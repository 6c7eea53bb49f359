"""Which units keep their gathered parameters between forward and backward, and what that moves."""

import pytest
import torch
from pitfall_models import Layer, Layers, check_training, gathered_bytes, in_engine, inputs, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from zprof.reference_engine.config import Keep

FORWARD = ["root", "layers.0", "layers.1", "layers.2"]
BACKWARD = ["root", "layers.2", "layers.1", "layers.0"]
AGAIN = {Keep.NONE: BACKWARD, Keep.LAST: ["root", "layers.1", "layers.0"], Keep.ALL: []}
LEFT = {Keep.NONE: [], Keep.LAST: ["layers.2"], Keep.ALL: FORWARD}


class Checkpointed(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class CheckpointedOutside(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().sum()


MODELS = {
    "plain": lambda: Layers(Layer),
    "checkpointed inside": lambda: Layers(Checkpointed),
    "checkpointed outside": lambda: CheckpointedOutside(Layer),
}


@pytest.mark.parametrize(
    ("name", "prefetch"), [("plain", 0), ("checkpointed inside", 2), ("checkpointed outside", 1)]
)
@pytest.mark.parametrize("keep", Keep)
def test_what_is_kept_is_not_gathered_a_second_time_and_changes_no_number(keep, name, prefetch):
    settings = {"keep_after_forward": keep, "forward_prefetch": prefetch, "backward_prefetch": prefetch}
    check_training(MODELS[name], 3, **settings)
    model, optimizer, comm = in_engine(MODELS[name](), 3, 2, **settings)
    for step in range(3):
        train(model, optimizer, step)
        assert comm.launches("all_gather") == FORWARD + AGAIN[keep]
        assert gathered_bytes(model) == 0
        comm.take_events()


def there(model) -> list[str]:
    return [unit.name for unit in model.units if unit.full.untyped_storage().nbytes()]


@pytest.mark.parametrize("keep", Keep)
def test_between_forward_and_backward_there_is_what_is_kept_and_no_more(keep):
    model, _, _ = in_engine(Layers(Layer), 3, keep_after_forward=keep)
    counts = []
    for layer in model.module.layers:
        layer.register_forward_pre_hook(lambda *_: counts.append(len(there(model))))
    for step in range(2):
        loss = model(inputs(step))
        assert there(model) == LEFT[keep]
        loss.backward()
        model.zero_grad()
    assert max(counts) == (4 if keep == Keep.ALL else 3)  # the root, the one in use and the prefetched


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_keeps_nothing(mode):
    model, optimizer, _ = in_engine(Layers(Layer), 3, keep_after_forward=Keep.ALL)
    train(model, optimizer)
    with mode():
        model(inputs(0))
    assert gathered_bytes(model) == 0


def test_what_a_forward_without_backward_kept_is_old_after_the_step():
    model, optimizer, _ = in_engine(Layers(Layer), 3, keep_after_forward=Keep.ALL)
    optimizer.zero_grad()
    model(inputs(0)).backward()
    forgotten = model(inputs(1))
    assert gathered_bytes(model) > 0
    before = model.state_dict()
    forgotten = model(inputs(1))
    optimizer.step()
    assert gathered_bytes(model) == 0
    after = model.state_dict()
    assert not any(torch.equal(after[name], before[name]) for name in before)
    del forgotten


def test_one_unit_that_is_the_whole_model_is_the_last():
    for keep, gathers in ((Keep.NONE, 2), (Keep.LAST, 1), (Keep.ALL, 1)):
        model, optimizer, comm = in_engine(Layers(Layer), 3, 2, units=[], keep_after_forward=keep)
        train(model, optimizer)
        assert comm.launches("all_gather") == ["root"] * gathers


class NoGradPart(nn.Module):
    """A part of the forward that is never trained through."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.layers[0](x)
        return self.layers[1](x).square().sum()


def test_a_part_without_gradients_is_given_back_at_once():
    model, _, _ = in_engine(NoGradPart(), 3, 2, keep_after_forward=Keep.ALL)
    loss = model(inputs(0))
    assert [unit.full.untyped_storage().nbytes() > 0 for unit in model.units] == [False, True]
    loss.backward()
    assert gathered_bytes(model) == 0
