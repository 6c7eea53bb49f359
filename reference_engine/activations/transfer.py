"""How a checkpoint gets to its place and back."""

from typing import Protocol

import torch


class Transfer(Protocol):
    """Copies between a tensor on the device and a place."""

    def store(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """Copy ``source`` into ``place``, of the same shape; ``source`` may be freed at once."""

    def load(self, place: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The content on the device, for the current stream."""


class OnDevice:
    """The place is memory of the device: it can be used where it is."""

    def store(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """See :class:`Transfer`."""
        place.copy_(source)

    def load(self, place: torch.Tensor, device: torch.device) -> torch.Tensor:
        """See :class:`Transfer`."""
        return place


class ToHost:
    """The place is memory of the host: the copy out runs beside the block's forward, on a stream of its own.

    The copy in is waited for by the current stream, as it is needed at once.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._leaving: torch.Tensor | None = None
        self._left: torch.cuda.Event | None = None

    def store(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """See :class:`Transfer`."""
        if source.device.type == "cpu":
            place.copy_(source)
            return
        current = torch.cuda.current_stream(source.device)
        self._wait_for_the_last(current)
        if self._stream is None:
            self._stream = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
        # Behind all that the current stream was given: what made the source, and what last read the place.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            place.copy_(source, non_blocking=True)
        self._leaving, self._left = source, self._stream.record_event()

    def load(self, place: torch.Tensor, device: torch.device) -> torch.Tensor:
        """See :class:`Transfer`."""
        if device.type != "cpu":
            self._wait_for_the_last(torch.cuda.current_stream(device))
        loaded = torch.empty(place.shape, dtype=place.dtype, device=device)
        return loaded.copy_(place, non_blocking=True)

    def _wait_for_the_last(self, current: torch.cuda.Stream) -> None:
        # The source is held until the current stream waits for its copy: only then may its memory be used
        # again.  So at most one checkpoint is on its way, and record_stream(), which delays by chance, is not
        # needed.
        if self._left is not None:
            current.wait_event(self._left)
        self._leaving = None
