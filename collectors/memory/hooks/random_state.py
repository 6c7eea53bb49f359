"""Notices ``torch.get_rng_state``: each checkpointed block keeps one, and no operator makes it."""

import functools
from typing import Any

import torch

from zprof.collectors.memory.lives.log import MemoryLog
from zprof.collectors.memory.lives.storages import StorageTracker


class RandomStatePatch:
    """Replaces the function in ``torch`` while installed; checkpointing looks it up there."""

    def __init__(self, log: MemoryLog, storages: StorageTracker) -> None:
        self._log = log
        self._storages = storages
        self._original: Any = None
        self._patch: Any = None

    def install(self) -> None:
        """Put the noticing function in place."""
        original = self._original = torch.get_rng_state

        @functools.wraps(original)
        def get_rng_state() -> torch.Tensor:
            state = original()
            if self._log.active:
                try:
                    self._storages.see(state, "get_rng_state")
                except Exception as error:  # a fault of ours must never reach the training loop
                    self._log.fail("random state", error)
            return state

        self._patch = torch.get_rng_state = get_rng_state

    def remove(self) -> None:
        """Put the original back, where nobody has replaced ours meanwhile."""
        if self._patch is not None and torch.get_rng_state is self._patch:
            torch.get_rng_state = self._original
        self._patch = None
