"""Notices ``UntypedStorage.resize_``: engines free and refill parameter storages with it, below dispatch."""

from typing import Any

import torch

from zprof.collectors.memory.lives.log import MemoryLog
from zprof.collectors.memory.lives.storages import StorageTracker


class ResizePatch:
    """Replaces the method on the class while installed."""

    def __init__(self, log: MemoryLog, storages: StorageTracker) -> None:
        self._log = log
        self._storages = storages
        self._patch: Any = None

    def install(self) -> None:
        """Put the noticing method in place."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            result = original(storage, *args, **kwargs)
            if self._log.active:
                try:
                    self._storages.resized(storage)
                except Exception as error:  # a fault of ours must never reach the training loop
                    self._log.fail("storage resize", error)
            return result

        self._patch = resize_
        setattr(torch.UntypedStorage, "resize_", resize_)  # noqa: B010, mypy knows it as a method

    def remove(self) -> None:
        """Take the method off again: the class inherits the original."""
        if self._patch is not None and torch.UntypedStorage.__dict__.get("resize_") is self._patch:
            del torch.UntypedStorage.resize_
        self._patch = None
