"""The categories of events in today's words, and what a category says of an event's columns."""

import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.columns import ABSENT, Int64s
from zprof.collectors.kineto.reading.texts import Answers, Texts

#: Those of 2020 and 2021, and flows, which have no duration but are told apart all the same.
_TODAY = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "async": "ac2g",
    "async_cpu_to_gpu": "ac2g",
}
_MOST = 1 << 12
_ON_A_STREAM = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"})
_STREAM_IS_THREAD = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})


class Categories:
    """``texts``: the categories so far."""

    def __init__(self) -> None:
        self.texts = Texts(lambda category: _TODAY.get(category, category), _MOST)
        self._on_a_stream = Answers(_ON_A_STREAM.__contains__)
        self._stream_is_thread = Answers(_STREAM_IS_THREAD.__contains__)

    def device_rows(self, codes: npt.NDArray[np.int32]) -> Int64s:
        """The rows of work on a device, and of waits for one."""
        return np.flatnonzero(self._on_a_stream.of(self.texts.texts, codes))

    def streams(self, codes: npt.NDArray[np.int32], rows: Int64s, stated: Int64s, thread: Int64s) -> Int64s:
        """The stream of each event: ``stated`` of the ``rows`` on a device, else the thread it stands on.

        What ROCm's arguments of calls have as stream is the address of a handle.
        """
        found = np.full(len(codes), ABSENT, dtype=np.int64)
        found[rows] = stated
        falls_back = self._stream_is_thread.of(self.texts.texts, codes) & (found == ABSENT)
        return np.where(falls_back, thread, found)
