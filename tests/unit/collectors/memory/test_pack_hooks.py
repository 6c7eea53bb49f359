"""Pack hooks of the program's own: what they keep for the backward is activations, wherever it goes later."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from memory_window import Window, record
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from zprof.analysis.memory.roles import tenant_name

ROWS, FEATURES = 40, 64
INPUT_BYTES = ROWS * FEATURES * 4


def model() -> nn.Module:
    """Its output is not of the size of its input."""
    return nn.Sequential(nn.Linear(FEATURES, 2 * FEATURES), nn.GELU(), nn.Linear(2 * FEATURES, 96))


class Box:
    """Keeps a tensor where nobody looks for one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def into_a_box(tensor: torch.Tensor) -> Box:
    return Box(tensor.detach().clone())


def into_a_chunk(tensor: torch.Tensor) -> Any:
    chunk = torch.empty(3 * tensor.numel())
    place = chunk[: tensor.numel()].view_as(tensor)
    place.copy_(tensor)
    return Box(place)


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def recorded(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], Any]) -> Window:
    block = model()

    def body() -> None:
        x = torch.randn(ROWS, FEATURES).exp()
        with saved_tensors_hooks(pack, unpack):
            y = checkpoint(block, x, use_reentrant=False)
        del x
        y.sum().backward()

    return record(body, block)


def owners_before_the_backward(window: Window) -> dict[int, tuple[str, str]]:
    """Tenant and sub of the bytes that live when the backward begins, by size; sizes here are told apart."""
    segments, timeline = window.lives.segments, window.lives.timeline
    begin_ns = next(time_ns for time_ns, phase in timeline.phases if phase == "backward") - 1
    live = (segments.begin_ns <= begin_ns) & (segments.end_ns > begin_ns)
    rows = zip(segments.bytes[live], segments.tenant[live], segments.sub[live], strict=True)
    return {int(size): (tenant_name(int(code)), str(sub)) for size, code, sub in rows}


@pytest.mark.parametrize(
    ("pack", "factor"), [(into_a_box, 1), (into_a_chunk, 3), (as_it_is, 1)], ids=["box", "chunk", "as it is"]
)
def test_what_a_pack_hook_keeps_is_activations(pack: Callable[[torch.Tensor], Any], factor: int) -> None:
    def unpack(packed: Any) -> torch.Tensor:
        return packed.tensor if isinstance(packed, Box) else packed

    window = recorded(pack, unpack)
    assert not window.gaps
    assert owners_before_the_backward(window)[factor * INPUT_BYTES] == ("activations", "saved")


def test_what_is_recomputed_is_not_called_saved() -> None:
    window = recorded(into_a_box, lambda box: box.tensor)
    assert "recomputed" in set(window.lives.segments.sub)


def test_a_fault_of_the_programs_hook_is_the_programs() -> None:
    def refuse(tensor: torch.Tensor) -> Any:
        raise KeyError("mine")

    def body() -> None:
        with pytest.raises(KeyError, match="mine"), saved_tensors_hooks(refuse, as_it_is):
            (torch.ones(4, requires_grad=True) ** 2).sum()
        (torch.ones(3, requires_grad=True) * 2).clone()

    window = record(body, nn.Linear(2, 2))
    assert not window.gaps
    assert not window.role["sub"].eq("saved").any()
