"""The memory tables of a run; see ``zprof.run.schema``, of which they are a part."""

import pyarrow as pa

from zprof.run.columns import column, name

#: One row for each life of a block of memory.  ``source``: profiler (the allocator's own event),
#: storage (a tensor storage that the tracker saw), foreign (memory torch did not allocate).  A
#: storage that was there before the window has the window's begin as ``allocated_ns``.
#: ``generation`` numbers the rows of source storage; -1 for the others.
ALLOC = pa.schema(
    [
        column("generation", pa.int64()),
        column("source", name),
        column("device", name),
        column("address", pa.int64()),
        column("bytes", pa.int64()),
        column("allocated_ns", pa.int64()),
        column("freed_ns", pa.int64(), nullable=True),
        column("before_window", pa.bool_()),
        column("operator", name, nullable=True),
        column("phase", name),
        column("module", name, nullable=True),
        column("thread", pa.int64(), nullable=True),
        column("stack", pa.int64(), nullable=True),
    ]
)

#: Python frames of a stack, ``depth`` 0 the innermost.  ``stack`` numbers the stacks of ``alloc`` and
#: ``block`` of the same rank.
STACK = pa.schema(
    [
        column("stack", pa.int64()),
        column("depth", pa.int64()),
        column("file", name),
        column("line", pa.int64()),
        column("function", name),
    ]
)

#: One row for each block of a CUDA allocator's history (recorded, or from a snapshot file).
#: ``freed_ns`` is when the program gave it back (free_requested), ``released_ns`` when no stream used it
#: any more (free_completed): in between it cannot be used again.  ``before_history``: it was there when the
#: history begins, which then stands in ``allocated_ns``.  ``tag`` is the program's own note
#: (user_metadata), ``pool`` a private pool's id ("0,0" is the common one).
BLOCK = pa.schema(
    [
        column("device", name),
        column("address", pa.int64()),
        column("requested_bytes", pa.int64()),
        column("block_bytes", pa.int64()),
        column("allocated_ns", pa.int64()),
        column("freed_ns", pa.int64(), nullable=True),
        column("released_ns", pa.int64(), nullable=True),
        column("before_history", pa.bool_()),
        column("stream", pa.int64(), nullable=True),
        column("pool", name, nullable=True),
        column("stack", pa.int64(), nullable=True),
        column("tag", name, nullable=True),
        column("compile_context", name, nullable=True),
    ]
)

#: One row for each stretch of device memory that a CUDA allocator held, from its mapping to its end.
SEGMENT = pa.schema(
    [
        column("device", name),
        column("address", pa.int64()),
        column("bytes", pa.int64()),
        column("mapped_ns", pa.int64()),
        column("unmapped_ns", pa.int64(), nullable=True),
        column("before_history", pa.bool_()),
        column("stream", pa.int64(), nullable=True),
        column("pool", name, nullable=True),
        column("expandable", pa.bool_()),
    ]
)

#: A claim of a tenant on a storage's life (``generation``), from ``time_ns`` on; ``gained`` false ends
#: it.  ``backdated``: the claim covers the storage from birth on.  ``via`` says who saw it.
ROLE = pa.schema(
    [
        column("generation", pa.int64()),
        column("time_ns", pa.int64()),
        column("tenant", name),
        column("sub", name),
        column("gained", pa.bool_()),
        column("backdated", pa.bool_()),
        column("via", name),
    ]
)

#: Counters of the allocator and of the process, sampled at step boundaries (``step`` -1 before the first);
#: a null column was not measurable.  The peaks are those since the process began.
SAMPLES = pa.schema(
    [
        column("time_ns", pa.int64()),
        column("step", pa.int64()),
        column("device", name),
        column("allocated_bytes", pa.int64(), nullable=True),
        column("reserved_bytes", pa.int64(), nullable=True),
        column("process_bytes", pa.int64(), nullable=True),
        column("active_bytes", pa.int64(), nullable=True),
        column("requested_bytes", pa.int64(), nullable=True),
        column("split_bytes", pa.int64(), nullable=True),
        column("peak_allocated_bytes", pa.int64(), nullable=True),
        column("peak_reserved_bytes", pa.int64(), nullable=True),
        column("retries", pa.int64(), nullable=True),
        column("ooms", pa.int64(), nullable=True),
    ]
)

#: What NVML says of a device while the program runs; a null column is not supported there.
#: ``reason``: period, before_group or after_group (``group``: whose first collective that is).
#: ``process_bytes`` is this process's on the device, ``used_bytes`` everybody's.  ``reserved_bytes`` is the
#: allocator's at the same moment.  ``cost_ns``: what taking the sample took.
DEVICE = pa.schema(
    [
        column("time_ns", pa.int64()),
        column("device", name),
        column("reason", name),
        column("group", name, nullable=True),
        column("cost_ns", pa.int64()),
        column("process_bytes", pa.int64(), nullable=True),
        column("used_bytes", pa.int64(), nullable=True),
        column("total_bytes", pa.int64(), nullable=True),
        column("reserved_bytes", pa.int64(), nullable=True),
        column("busy_ratio", pa.float64(), nullable=True),
        column("memory_busy_ratio", pa.float64(), nullable=True),
        column("sm_clock_hz", pa.int64(), nullable=True),
        column("memory_clock_hz", pa.int64(), nullable=True),
        column("throttle_reasons", pa.int64(), nullable=True),
        column("power_watts", pa.float64(), nullable=True),
        column("temperature_celsius", pa.float64(), nullable=True),
        column("pcie_sent_bytes_per_s", pa.int64(), nullable=True),
        column("pcie_received_bytes_per_s", pa.int64(), nullable=True),
        column("nvlink_sent_bytes_per_s", pa.int64(), nullable=True),
        column("nvlink_received_bytes_per_s", pa.int64(), nullable=True),
    ]
)
