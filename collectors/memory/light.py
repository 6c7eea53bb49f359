"""Record memory in light mode: hooks only, at most 1 % overhead; operators are not recorded.

Saved tensors are recorded for the first step of the window only (a saved tensor costs two calls into Python,
and a step has about a hundred). Gradients, states and gathered parameters are recorded in all steps,
rescanning only what may have changed.
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

#: Placeholder operator of storages first recorded by a hook; some operator in the window allocated them.
UNKNOWN_OPERATOR = "(seen by a hook)"

OPERATORS_NOT_RECORDED = Gap(
    kind=GapKind.MEMORY_PART,
    what="operator workspaces, and communication buffers other than gathered parameters",
    reason="light mode records hooks, not operators",
    remedy="record memory in full mode",
)
FIRST_STEP_ONLY = Gap(
    kind=GapKind.MEMORY_PART,
    what="activations after the first step of the memory window",
    reason="light mode records saved tensors in the first step only",
    remedy="use the peak of the window, which covers the first step, or record memory in full mode",
)
_STEP_PHASES = (Phase.FORWARD, Phase.OPTIMIZER)


class LightScans:
    """Scan within a step, limited to what may have changed."""

    def __init__(
        self, scanner: OwnerScanner, storages: StorageTracker, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Count the existing states of ``optimizers``, which the scan at the window's start claims."""
        self._scanner, self._storages = scanner, storages
        self._sizes = {id(optimizer): _count_states(optimizer) for optimizer in optimizers}
        self.empty_parameters = scanner.empty_parameters

    def begin_forward(self) -> None:
        """Do nothing: a dropped gradient ends with its storage, and the window's last scan covers
        the rest.
        """

    def on_module_called(self, module: nn.Module) -> None:
        """Scan the module only if a parameter has moved to another storage since the window's first scan."""
        for parameter in module._parameters.values():
            if parameter is not None:
                # The key of the parameter's storage; -1 if it has no storage of its own (DTensor).
                entry = self._storages.live.get(
                    parameter.untyped_storage()._cdata if type(parameter) is nn.Parameter else -1
                )
                if entry is None or WEIGHT not in entry.claimed:
                    self._scanner.on_module_called(module)
                    return

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Claim gradients that no hook recorded: reduced, copied or reshaped ones."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    for gradient in find_plain_tensors(parameter.grad):
                        entry = self._storages.track(gradient)
                        if not entry.claimed:
                            self._storages.claim(entry, GRADIENT)

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Claim the states if their number has changed; the scan at the window's end covers all."""
        size = _count_states(optimizer)
        if self._sizes.get(id(optimizer)) != size:
            self._sizes[id(optimizer)] = size
            self._scanner.after_optimizer(optimizer)

    def claim_engine_tensors(self) -> None:
        """Claim what the engines hold; only new storages cost more than a look-up."""
        self._scanner.claim_engine_tensors()

    def claim_buckets(self) -> None:
        """Claim the buckets that the engines have allocated in the backward."""
        self._scanner.claim_buckets()


def _count_states(optimizer: torch.optim.Optimizer) -> int:
    states: Any = getattr(optimizer, "state", None)  # an engine's own optimizer need not have one
    return sum(len(state) for state in states.values() if isinstance(state, dict)) if states else 0


class FirstStepWatcher:
    """Call ``on_done`` once, after the first step of all optimizers in the window."""

    def __init__(
        self, log: MemoryLog, optimizers: Sequence[torch.optim.Optimizer], on_done: Callable[[], None]
    ) -> None:
        self._log, self._on_done = log, on_done
        self._expected = {id(optimizer) for optimizer in optimizers}
        self._stepped: set[int] = set()
        self._thread = 0
        self._handle: Any = None
        self._end_phase_index: int | None = None

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
        later_phases = [] if self._end_phase_index is None else self._log.phases[self._end_phase_index :]
        # A compiled model has no forward hooks; its optimizer's step still shows that a step ran.
        return [FIRST_STEP_ONLY] if any(phase in _STEP_PHASES for _, phase in later_phases) else []

    def _step_done(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Call ``on_done`` when all optimizers have stepped, or one has stepped twice.

        Do nothing within a backward (a per-parameter optimizer may step there) or on another thread:
        saved-tensor hooks belong to the thread, and the autograd engine restores its own set of them.
        """
        is_second_step = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        if not (is_second_step or self._expected <= self._stepped):
            return
        if current_graph_task_id() == -1 and threading.get_ident() == self._thread:
            self.remove()
            self._end_phase_index = len(self._log.phases)
            try:
                self._on_done()
            except Exception as error:  # an error in zprof must never reach the training loop
                self._log.fail("end of the first step", error)
