"""The tables of a run (schema ``zprof.run/1``): one Parquet file per rank and table.

Times are absolute int64 nanoseconds of the rank's own clock, sizes int64 bytes.  A column is null
where the value is unknown, never 0.  Names are dictionary-encoded.
"""

import pyarrow as pa

from zprof.run.columns import column, name
from zprof.run.memory_schema import ALLOC, BLOCK, DEVICE, ROLE, SAMPLES, SEGMENT, STACK

#: Everything with a duration: kernels, copies, CPU operators, annotations.  ``category`` is Kineto's
#: ``cat`` (cpu_op, user_annotation, kernel, gpu_memcpy, ...), in today's words also where the file is older.
#: ``stream`` is null off the device.  ``correlation`` ties a device's work to the host's call,
#: ``external_id`` to the operator.  ``bytes`` are those of a copy.
EVENTS = pa.schema(
    [
        column("start_ns", pa.int64()),
        column("duration_ns", pa.int64()),
        column("category", name),
        column("name", name),
        column("thread", pa.int64()),
        column("stream", pa.int64(), nullable=True),
        column("correlation", pa.int64(), nullable=True),
        column("external_id", pa.int64(), nullable=True),
        column("bytes", pa.int64(), nullable=True),
    ]
)

#: One row for each collective that this rank executed.
#: ``group`` is the sorted global ranks ("0,1,2"), and what tells groups over the same ranks apart behind them
#: ("0,1,2#mesh_fsdp"); "pg:<name>" where its ranks are not known, "stream:<id>" (size 0) where nothing is.
#: ``sequence`` counts within the group; of sends and receives, per peer.  ``bytes`` is the full (gathered)
#: tensor, 0 where it is not known (a gap says so).
#: start/end: when it ran.  A kernel's row has exactly the start, end and stream of its event.  A collective
#: that copy engines carry out has one row from the start of its first copy to the end of its last, on the
#: stream of the first (method "copies"); its copies lie within it.
#: launch_*: the host's call.  wait_*: the host blocked for its result.
#: ``peer_rank`` is the global rank of the other side of a send or recv, and the root of a one-sided kind.
#: ``method`` names the rung of the reader that made the row (range, gloo_fifo, nccl, copies, operator,
#: kernel_name, ...), with "_order" behind it where ``sequence`` is only the order on this rank.
COLLECTIVES = pa.schema(
    [
        column("kind", name),
        column("group", name),
        column("group_size", pa.int32()),
        column("sequence", pa.int64()),
        column("dtype", name),
        column("bytes", pa.int64()),
        column("start_ns", pa.int64()),
        column("end_ns", pa.int64()),
        column("launch_start_ns", pa.int64(), nullable=True),
        column("launch_end_ns", pa.int64(), nullable=True),
        column("wait_start_ns", pa.int64(), nullable=True),
        column("wait_end_ns", pa.int64(), nullable=True),
        column("unit", name, nullable=True),
        column("stream", pa.int64(), nullable=True),
        column("peer_rank", pa.int64(), nullable=True),
        column("method", name),
    ]
)

#: Points in time: step_begin, step_end (name: what marked the step of an imported trace), window_begin,
#: window_end (name: init, memory or time), phase (name: the phase that begins), ping_begin, ping_end (number:
#: index of the ping).  Of a CUDA allocator's history: annotation_begin, annotation_end (name: what the
#: program called the range, number: the device), oom (name: the device, number: its free bytes, -1 where
#: unknown) and oom_request at the same time (number: the bytes asked for).
MARK = pa.schema(
    [
        column("time_ns", pa.int64()),
        column("kind", name),
        column("number", pa.int64()),
        column("name", name),
    ]
)

TABLES: dict[str, pa.Schema] = {
    "events": EVENTS,
    "collectives": COLLECTIVES,
    "alloc": ALLOC,
    "role": ROLE,
    "mark": MARK,
    "samples": SAMPLES,
    "stack": STACK,
    "block": BLOCK,
    "segment": SEGMENT,
    "device": DEVICE,
    # the same of the window before the first step
    "init_alloc": ALLOC,
    "init_role": ROLE,
}
