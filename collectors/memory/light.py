"""Record memory in light mode: hooks only, at most 1 % of the step; operators are not seen.

What autograd saves is recorded until the first step of the window is over (a saved tensor costs two calls
into Python, a hundred of them per step). Gradients, states and gathered parameters are recorded in all steps,
with scans reduced to what can have changed.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from zprof.collectors.memory.log import MemoryLog
from zprof.collectors.memory.owners import GRADIENT, WEIGHT, OwnerScanner
from zprof.collectors.memory.storages import StorageTracker, find_plain_tensors
from zprof.collectors.torch_private import current_graph_task_id
from zprof.model.gaps import Gap, GapKind
from zprof.model.training import Phase

#: Operator of storages that a hook saw first: some operator of the window allocated them.
SEEN_BY_HOOK = "(seen by a hook)"

OPERATORS_UNSEEN = Gap(
    kind=GapKind.MEMORY_PART,
    what="memory that operators use for themselves, and communication buffers but gathered parameters",
    reason="light mode watches hooks, not operators",
    remedy="record memory in full mode",
)
FIRST_STEP_ONLY = Gap(
    kind=GapKind.MEMORY_PART,
    what="activations after the first step of the memory window",
    reason="light mode watches what autograd saves in the first step only",
    remedy="read the peak of the window, which holds the first step; or record memory in full mode",
)


class LightScans:
    """Scans within a step, reduced to what can have changed."""

    def __init__(
        self, scanner: OwnerScanner, storages: StorageTracker, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Count the present states of ``optimizers``: the scan at the window's start claims them."""
        self._scanner, self._storages = scanner, storages
        self._sizes = {id(optimizer): _count_states(optimizer) for optimizer in optimizers}
        self.absent = scanner.absent

    def begin_forward(self) -> None:
        """Do nothing: a dropped gradient dies with its storage, and the window's last scan sees the rest."""

    def gathered(self, module: nn.Module) -> None:
        """Scan the module only if a parameter is not in the storage that the window's first scan found."""
        for parameter in module._parameters.values():
            if parameter is not None:
                entry = self._storages.live.get(_get_storage_key(parameter))
                if entry is None or WEIGHT not in entry.claimed:
                    self._scanner.gathered(module)
                    return

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Claim the gradients that no hook saw: reduced, copied or reshaped ones."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    for gradient in find_plain_tensors(parameter.grad):
                        entry = self._storages.see(gradient)
                        if not entry.claimed:
                            self._storages.claim(entry, GRADIENT)

    def states(self, optimizer: torch.optim.Optimizer) -> None:
        """Claim the states if their number has changed; the scan at the window's end sees all."""
        size = _count_states(optimizer)
        if self._sizes.get(id(optimizer)) != size:
            self._sizes[id(optimizer)] = size
            self._scanner.states(optimizer)


def _get_storage_key(parameter: nn.Parameter) -> int:
    """Return the key of the storage with the parameter's bytes; -1 if it holds none itself (DTensor)."""
    return parameter.untyped_storage()._cdata if type(parameter) is nn.Parameter else -1


def _count_states(optimizer: torch.optim.Optimizer) -> int:
    states: Any = getattr(optimizer, "state", None)  # an engine's own optimizer need not have one
    return sum(len(state) for state in states.values() if isinstance(state, dict)) if states else 0


_STEPS = (Phase.FORWARD, Phase.OPTIMIZER)


class FirstStep:
    """Calls ``over`` once, after the optimizers' first step of the window."""

    def __init__(
        self, log: MemoryLog, optimizers: Sequence[torch.optim.Optimizer], over: Callable[[], None]
    ) -> None:
        self._log, self._over = log, over
        self._waited_for = {id(optimizer) for optimizer in optimizers}
        self._stepped: set[int] = set()
        self._thread = 0
        self._handle: Any = None
        self._over_at: int | None = None

    def install(self) -> None:
        """Start waiting for the optimizers' steps on the calling thread."""
        self._thread = threading.get_ident()
        self._handle = register_optimizer_step_post_hook(self._step_done)

    def remove(self) -> None:
        """Stop waiting."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def gaps(self) -> list[Gap]:
        """Return a gap if the window has steps after the first, whose saved tensors are not recorded."""
        later = [] if self._over_at is None else self._log.phases[self._over_at :]
        # A compiled model has no forward hooks; its optimizer's step still shows that a step ran.
        return [FIRST_STEP_ONLY] if any(phase in _STEPS for _, phase in later) else []

    def _step_done(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Call ``over`` when all optimizers have stepped, or one has for the second time.

        Not from within a backward (a per-parameter optimizer may step there), nor on another thread:
        saved-tensor hooks belong to the thread, and the autograd engine restores its own set of them.
        """
        again = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        if not (again or self._waited_for <= self._stepped):
            return
        if current_graph_task_id() == -1 and threading.get_ident() == self._thread:
            self.remove()
            self._over_at = len(self._log.phases)
            try:
                self._over()
            except Exception as error:  # a fault of zprof must never reach the training loop
                self._log.fail("end of the first step", error)
