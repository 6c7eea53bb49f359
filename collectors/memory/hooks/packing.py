"""What the program's own pack hooks keep for the backward: each of it is an activation.

A hook that offloads, partitions or copies a saved tensor returns what it likes.  What its operators write,
and the tensors that it returns, stay until the backward (save_on_cpu, ZeRO's partitioned checkpoints).
"""

from collections.abc import Callable
from typing import Any

from zprof.collectors.memory.lives.phases import PhaseTracker
from zprof.model.phases import Phase

AnyPack = Callable[[Any], Any]


class PackWatch:
    """Knows whether a pack hook of the program runs now."""

    def __init__(self, phases: PhaseTracker) -> None:
        self._phases = phases
        #: How many run now; above 0 what is written is kept for the backward.  Read at every operator.
        self.depth = 0

    def watched(self, pack: AnyPack, kept: Callable[[Any], None]) -> AnyPack:
        """The hook itself, watched; ``kept`` gets what it returned."""

        def watched_pack(tensor: Any) -> Any:
            if self._phases.phase is Phase.RECOMPUTE:  # saved for now, as all that is recomputed
                return pack(tensor)
            self.depth += 1
            try:
                packed = pack(tensor)
            finally:
                self.depth -= 1
            kept(packed)
            return packed

        return watched_pack
