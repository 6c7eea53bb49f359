"""What a block takes of its segment, where the snapshot does not say it: dead blocks.

A trace has requested sizes only.  The allocator rounds them up (``CUDACachingAllocator.cpp``): to 512
bytes, or to a division of the power of two if ``roundup_power2_divisions`` is set; then it takes a free
block that may be larger, and splits it where the rest is worth keeping: 512 bytes in the small pool (up
to 1 MiB) and in expandable segments, more than 1 MiB in the large pool.  What a block of the large pool
got on top is therefore not in the trace, and up to 1 MiB.
"""

import numpy as np

from zprof.collectors.snapshot.fields import Integers

UNIT_BYTES = 512
SMALL_BYTES = 1 << 20


def rounded(requested: Integers) -> Integers:
    """The least that the allocator takes for these requests."""
    return np.maximum((requested + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES, UNIT_BYTES)
