"""The tables of a run (schema ``zprof.run/1``): one Parquet file per rank and table.

Times are absolute int64 nanoseconds of the rank's own clock, sizes int64 bytes.  A column is null
where the value is unknown, never 0.  Names are dictionary-encoded.
"""

import pyarrow as pa

RUN_SCHEMA = "zprof.run/1"

_name = pa.dictionary(pa.int32(), pa.string())


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


#: Everything with a duration: kernels, copies, CPU operators, annotations.  ``category`` is Kineto's
#: ``cat`` (cpu_op, user_annotation, kernel, gpu_memcpy, ...).  ``stream`` is null off the device.
EVENTS = pa.schema(
    [
        _column("start_ns", pa.int64()),
        _column("duration_ns", pa.int64()),
        _column("category", _name),
        _column("name", _name),
        _column("thread", pa.int64()),
        _column("stream", pa.int64(), nullable=True),
        _column("correlation", pa.int64(), nullable=True),
    ]
)

#: One row for each collective that this rank executed.  ``group`` is the sorted ranks, or the name of
#: the process group; ``sequence`` counts within the group.  ``bytes`` is the full (gathered) tensor.
#: start/end: when it ran.  launch_*: the host's call.  wait_*: the host blocked for its result.
#: ``method`` names the rung of the reader that made the row (range, gloo_fifo, nccl, ...).
COLLECTIVES = pa.schema(
    [
        _column("kind", _name),
        _column("group", _name),
        _column("group_size", pa.int32()),
        _column("sequence", pa.int64()),
        _column("dtype", _name),
        _column("bytes", pa.int64()),
        _column("start_ns", pa.int64()),
        _column("end_ns", pa.int64()),
        _column("launch_start_ns", pa.int64(), nullable=True),
        _column("launch_end_ns", pa.int64(), nullable=True),
        _column("wait_start_ns", pa.int64(), nullable=True),
        _column("wait_end_ns", pa.int64(), nullable=True),
        _column("unit", _name, nullable=True),
        _column("stream", pa.int64(), nullable=True),
        _column("method", _name),
    ]
)

#: One row for each life of a block of memory.  ``source``: profiler (the allocator's own event),
#: storage (a tensor storage that the tracker saw), foreign (memory torch did not allocate).  A
#: storage that was there before the window has the window's begin as ``allocated_ns``.
#: ``generation`` numbers the rows of source storage; -1 for the others.
ALLOC = pa.schema(
    [
        _column("generation", pa.int64()),
        _column("source", _name),
        _column("device", _name),
        _column("address", pa.int64()),
        _column("bytes", pa.int64()),
        _column("allocated_ns", pa.int64()),
        _column("freed_ns", pa.int64(), nullable=True),
        _column("before_window", pa.bool_()),
        _column("operator", _name, nullable=True),
        _column("phase", _name),
        _column("module", _name, nullable=True),
        _column("thread", pa.int64(), nullable=True),
    ]
)

#: A claim of a tenant on a storage's life (``generation``), from ``time_ns`` on; ``gained`` false ends
#: it.  ``backdated``: the claim covers the storage from birth on.  ``via`` says who saw it.
ROLE = pa.schema(
    [
        _column("generation", pa.int64()),
        _column("time_ns", pa.int64()),
        _column("tenant", _name),
        _column("sub", _name),
        _column("gained", pa.bool_()),
        _column("backdated", pa.bool_()),
        _column("via", _name),
    ]
)

#: Points in time: step_begin, step_end, window_begin, window_end (name: memory or time),
#: phase (name: the phase that begins), ping_begin, ping_end (number: index of the ping).
MARK = pa.schema(
    [
        _column("time_ns", pa.int64()),
        _column("kind", _name),
        _column("number", pa.int64()),
        _column("name", _name),
    ]
)

#: Counters sampled at step boundaries; a null column was not measurable.
SAMPLES = pa.schema(
    [
        _column("time_ns", pa.int64()),
        _column("step", pa.int64()),
        _column("device", _name),
        _column("allocated_bytes", pa.int64(), nullable=True),
        _column("reserved_bytes", pa.int64(), nullable=True),
        _column("process_bytes", pa.int64(), nullable=True),
    ]
)

TABLES: dict[str, pa.Schema] = {
    "events": EVENTS,
    "collectives": COLLECTIVES,
    "alloc": ALLOC,
    "role": ROLE,
    "mark": MARK,
    "samples": SAMPLES,
}
