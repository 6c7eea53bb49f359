"""What is waited for: a collective and what follows it, or several of them."""

from collections.abc import Callable, Sequence

from zprof.reference_engine.comm import Handle


class Then:
    """A collective, and what is done with its result, once, by whoever waits for it first."""

    def __init__(self, handle: Handle, then: Callable[[], object]) -> None:
        self._handle = handle
        self._then: Callable[[], object] | None = then

    def wait(self) -> None:
        """See :class:`~zprof.reference_engine.comm.Handle`."""
        if self._then is not None:
            self._handle.wait()
            then, self._then = self._then, None
            then()


class AllOf:
    """Several collectives, in the order of their launch; none is there at once."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = tuple(handles)

    def wait(self) -> None:
        """See :class:`~zprof.reference_engine.comm.Handle`."""
        handles, self._handles = self._handles, ()
        for handle in handles:
            handle.wait()
