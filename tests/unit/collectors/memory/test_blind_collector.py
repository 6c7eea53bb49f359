"""A collector that lost one of its senses is seen by these checks: each of them turns red without it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from memory_window import Window, record
from torch import nn

from zprof.analysis.memory import join
from zprof.analysis.memory.live_bytes import find_alive_segments
from zprof.analysis.memory.tables import TENANT_CODES
from zprof.collectors.memory.owners import Holdings, OwnerScanner
from zprof.collectors.memory.saved_tensors import SavedTensors
from zprof.model.tenants import Tenant

LAYERS, WIDTH, BATCH = 4, 256, 64
SIZE = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
ACTIVATION = BATCH * WIDTH * 4


@pytest.fixture
def window() -> Callable[[], Window]:
    """One step of the small model; its gradients are kept beyond the second forward."""

    def run() -> Window:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        optimizer = torch.optim.AdamW(model.parameters())
        kept: list[torch.Tensor | None] = []

        def body() -> None:
            model(torch.randn(BATCH, WIDTH)).square().mean().backward()
            optimizer.step()
            kept.extend(parameter.grad for parameter in model.parameters())
            optimizer.zero_grad()
            model(torch.randn(BATCH, WIDTH))

        return record(body, model, optimizer)

    return run


def held(window: Window, tenant: Tenant, time_ns: int) -> int:
    parts = window.lives.segments
    rows = find_alive_segments(parts, time_ns)
    return int(parts.bytes[rows][parts.tenant[rows] == TENANT_CODES[tenant]].sum())


def backward_of(window: Window) -> int:
    return next(time_ns for time_ns, name in window.lives.timeline.phases if name == "backward")


def check_activations(window: Window) -> None:
    """The input of each layer, and the last output, which the square saves; four bytes of the mean."""
    assert held(window, Tenant.ACTIVATIONS, backward_of(window)) - (LAYERS + 1) * ACTIVATION in (0, 4, 8)


def check_states(window: Window) -> None:
    assert window.lives.states() == {
        Tenant.PARAMETERS: SIZE,
        Tenant.GRADIENTS: SIZE,
        Tenant.OPTIMIZER_STATE: 2 * SIZE + 4 * 2 * LAYERS,
    }


def check_dropped_gradients(window: Window) -> None:
    assert held(window, Tenant.GRADIENTS, window.lives.timeline.end_ns) == 0


def check_total(window: Window) -> None:
    """No byte twice: weights, what is kept of the gradients, states, and less than 3 MB that come and go.

    What other tests of this process hold is alive from the begin on.
    """
    parts = window.lives.segments
    at_begin = int(parts.bytes[find_alive_segments(parts, window.lives.timeline.begin_ns)].sum())
    others = at_begin - held(window, Tenant.PARAMETERS, window.lives.timeline.begin_ns)
    assert 4 * SIZE <= window.lives.peak().bytes - others < 4 * SIZE + 3_000_000


CHECKS = [check_activations, check_states, check_dropped_gradients, check_total]


@pytest.mark.parametrize("check", CHECKS)
def test_all_senses_in_place(window: Callable[[], Window], check: Callable[[Window], None]) -> None:
    check(window())


def nothing(*_: object, **__: object) -> None:
    pass


def no_owner(storages: join.Lives, *_: object) -> np.ndarray:
    return np.full(len(storages), -1, dtype=np.int64)


@pytest.mark.parametrize(
    ("place", "name", "blind", "check"),
    [
        (SavedTensors, "install", nothing, check_activations),
        (OwnerScanner, "states", nothing, check_states),
        (OwnerScanner, "boundary", nothing, check_states),
        (Holdings, "holds", nothing, check_dropped_gradients),
        (join, "_find_owners", no_owner, check_total),
    ],
)
def test_without_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
    window: Callable[[], Window],
    place: object,
    name: str,
    blind: Callable[..., object],
    check: Callable[[Window], None],
) -> None:
    monkeypatch.setattr(place, name, blind)
    blinded = window()
    with pytest.raises(AssertionError):
        check(blinded)
