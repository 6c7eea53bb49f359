"""Track the phase of the step and the running module, from module and optimizer hooks.

No module hook runs in the backward pass. There, an operator is identified by the sequence number of its
autograd node: nodes are numbered in ascending order during the forward pass, so the numbers at the entry and
exit of each module map a node to the module that created it.
"""

import bisect
import time

from zprof.collectors.record.memory.log import MemoryLog
from zprof.collectors.record.torch_private import (
    current_autograd_node,
    current_graph_task_id,
    next_sequence_number,
)
from zprof.model.training import Phase

# Used at every birth and every module: attribute look-ups would be a quarter of the cost.
_FORWARD, _BACKWARD, _OTHER = Phase.FORWARD, Phase.BACKWARD, Phase.OTHER


class PhaseTracker:
    """Track the current phase and module; set by hooks, read at each birth."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._modules: list[str] = []
        self._recompute_depth = 0
        self._module_starts: list[tuple[int, str | None]] = []
        self._kept_starts = 0
        self.phase = _OTHER

    def enter_module(self, name: str) -> None:
        """Record the start of a module's forward."""
        if current_graph_task_id() != -1:
            if not self._recompute_depth:
                self.switch(_BACKWARD)  # record its start, although it has not allocated anything yet
            self._recompute_depth += 1
            self.switch(Phase.RECOMPUTE)
        elif self.phase is not _FORWARD and self.phase is not Phase.OPTIMIZER:
            self.switch(_FORWARD)
        self._modules.append(name)
        self._record_module(name)

    def leave_module(self, name: str) -> None:
        """Record the end of a module's forward, successful or not."""
        modules = self._modules
        if name in modules:
            while modules.pop() != name:
                pass
        self._record_module(modules[-1] if modules else None)
        if self._recompute_depth:
            self._recompute_depth -= 1
            if not self._recompute_depth:
                self.switch(_BACKWARD)

    def switch(self, phase: Phase) -> None:
        """Start a phase if it is not the current one."""
        if phase is not self.phase:
            self.phase = phase
            self._log.phases.append((time.time_ns(), phase))

    def locate(self) -> tuple[Phase, str | int | None]:
        """Return the current phase, and the module's name or the autograd node's number."""
        phase = self.phase
        if (phase is _FORWARD or phase is _OTHER) and current_graph_task_id() != -1:
            self.switch(_BACKWARD)
            phase = _BACKWARD
        if phase is not _BACKWARD:
            return phase, self._modules[-1] if self._modules else None
        node = current_autograd_node()
        return phase, None if node is None else node._sequence_nr()

    def find_module(self, sequence: int) -> str | None:
        """Return the module whose forward created the autograd node with this number."""
        index = bisect.bisect_right(self._module_starts, sequence, key=lambda module_start: module_start[0])
        return self._module_starts[index - 1][1] if index else None

    def forget_modules(self) -> None:
        """Forget the modules of steps before the last call: no backward pass refers to them any more."""
        del self._module_starts[: self._kept_starts]
        self._kept_starts = len(self._module_starts)

    def _record_module(self, name: str | None) -> None:
        self._module_starts.append((next_sequence_number(), name))
