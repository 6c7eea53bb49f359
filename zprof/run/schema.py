"""Tables of a run (schema ``zprof.run/1``): one Parquet file per rank and table.

Times are absolute int64 nanoseconds on the rank's own clock, sizes int64 bytes. A column is null if the value
is unknown, never 0. Names are dictionary-encoded.
"""

import pyarrow as pa

#: Strings with repeated values.
TEXT = pa.dictionary(pa.int32(), pa.string())


def make_column(title: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """Return one column; it is not nullable by default."""
    return pa.field(title, kind, nullable=nullable)


#: One row per lifetime of a block of memory. ``source``: profiler (the allocator's own event), storage (a
#: tensor storage that the tracker observed), foreign (memory that torch did not allocate). A storage older
#: than the window has the start of the window as ``allocated_ns``. ``generation`` numbers the rows of source
#: storage; -1 for the others.
ALLOC = pa.schema(
    [
        make_column("generation", pa.int64()),
        make_column("source", TEXT),
        make_column("device", TEXT),
        make_column("address", pa.int64()),
        make_column("bytes", pa.int64()),
        make_column("allocated_ns", pa.int64()),
        make_column("freed_ns", pa.int64(), nullable=True),
        make_column("before_window", pa.bool_()),
        make_column("operator", TEXT, nullable=True),
        make_column("phase", TEXT),
        make_column("module", TEXT, nullable=True),
        make_column("thread", pa.int64(), nullable=True),
        make_column("stack", pa.int64(), nullable=True),
    ]
)

#: Python frames of a stack; ``depth`` 0 is the innermost. ``stack`` numbers the stacks of ``alloc`` and
#: ``block`` of the same rank.
STACK = pa.schema(
    [
        make_column("stack", pa.int64()),
        make_column("depth", pa.int64()),
        make_column("file", TEXT),
        make_column("line", pa.int64()),
        make_column("function", TEXT),
    ]
)

#: Where the thread of the training loop was during the time window. ``kind``: timer (at regular intervals) or
#: read (a tensor's value was read back). ``stack`` numbers the stacks of ``host_stack``, which has the
#: columns of ``stack``.
HOST_SAMPLE = pa.schema(
    [
        make_column("time_ns", pa.int64()),
        make_column("kind", TEXT),
        make_column("stack", pa.int64()),
    ]
)

#: One row per block of a CUDA allocator's history (recorded, or from a snapshot file). ``freed_ns`` is when
#: the program freed it (free_requested), ``released_ns`` when no stream used it any more (free_completed); in
#: between it cannot be reused. ``before_history``: it existed before the history; ``allocated_ns`` is then
#: the start of the history. ``tag`` is the program's own tag (user_metadata), ``pool`` the id of a private
#: pool ("0,0" is the default one).
BLOCK = pa.schema(
    [
        make_column("device", TEXT),
        make_column("address", pa.int64()),
        make_column("requested_bytes", pa.int64()),
        make_column("block_bytes", pa.int64()),
        make_column("allocated_ns", pa.int64()),
        make_column("freed_ns", pa.int64(), nullable=True),
        make_column("released_ns", pa.int64(), nullable=True),
        make_column("before_history", pa.bool_()),
        make_column("stream", pa.int64(), nullable=True),
        make_column("pool", TEXT, nullable=True),
        make_column("stack", pa.int64(), nullable=True),
        make_column("tag", TEXT, nullable=True),
        make_column("compile_context", TEXT, nullable=True),
    ]
)

#: One row per range of device memory that a CUDA allocator held, from mapping to unmapping.
SEGMENT = pa.schema(
    [
        make_column("device", TEXT),
        make_column("address", pa.int64()),
        make_column("bytes", pa.int64()),
        make_column("mapped_ns", pa.int64()),
        make_column("unmapped_ns", pa.int64(), nullable=True),
        make_column("before_history", pa.bool_()),
        make_column("stream", pa.int64(), nullable=True),
        make_column("pool", TEXT, nullable=True),
        make_column("expandable", pa.bool_()),
    ]
)

#: A tenant's claim on the lifetime of a storage (``generation``), starting at ``time_ns``; ``gained`` false
#: ends it. ``backdated``: the claim starts at the allocation of the storage. ``via``: the hook or rule that
#: made the claim.
ROLE = pa.schema(
    [
        make_column("generation", pa.int64()),
        make_column("time_ns", pa.int64()),
        make_column("tenant", TEXT),
        make_column("sub", TEXT),
        make_column("gained", pa.bool_()),
        make_column("backdated", pa.bool_()),
        make_column("via", TEXT),
    ]
)

#: Counters of the allocator and of the process, sampled at step boundaries (``step`` is -1 before the first).
#: A null column could not be measured. Peaks count from the start of the process.
SAMPLES = pa.schema(
    [
        make_column("time_ns", pa.int64()),
        make_column("step", pa.int64()),
        make_column("device", TEXT),
        make_column("allocated_bytes", pa.int64(), nullable=True),
        make_column("reserved_bytes", pa.int64(), nullable=True),
        make_column("process_bytes", pa.int64(), nullable=True),
        make_column("active_bytes", pa.int64(), nullable=True),
        make_column("requested_bytes", pa.int64(), nullable=True),
        make_column("split_bytes", pa.int64(), nullable=True),
        make_column("peak_allocated_bytes", pa.int64(), nullable=True),
        make_column("peak_reserved_bytes", pa.int64(), nullable=True),
        make_column("retries", pa.int64(), nullable=True),
        make_column("ooms", pa.int64(), nullable=True),
    ]
)

#: NVML readings of a device while the program runs; a null column is not supported on that device.
#: ``reason``: period, before_group or after_group (``group``: the group of that first collective).
#: ``process_bytes`` is this process's use of the device, ``used_bytes`` that of all processes.
#: ``reserved_bytes`` is the allocator's value at the same moment. ``cost_ns``: duration of taking the sample.
DEVICE = pa.schema(
    [
        make_column("time_ns", pa.int64()),
        make_column("device", TEXT),
        make_column("reason", TEXT),
        make_column("group", TEXT, nullable=True),
        make_column("cost_ns", pa.int64()),
        make_column("process_bytes", pa.int64(), nullable=True),
        make_column("used_bytes", pa.int64(), nullable=True),
        make_column("total_bytes", pa.int64(), nullable=True),
        make_column("reserved_bytes", pa.int64(), nullable=True),
        make_column("busy_ratio", pa.float64(), nullable=True),
        make_column("memory_busy_ratio", pa.float64(), nullable=True),
        make_column("sm_clock_hz", pa.int64(), nullable=True),
        make_column("memory_clock_hz", pa.int64(), nullable=True),
        make_column("throttle_reasons", pa.int64(), nullable=True),
        make_column("power_watts", pa.float64(), nullable=True),
        make_column("temperature_celsius", pa.float64(), nullable=True),
        make_column("pcie_sent_bytes_per_s", pa.int64(), nullable=True),
        make_column("pcie_received_bytes_per_s", pa.int64(), nullable=True),
        make_column("nvlink_sent_bytes_per_s", pa.int64(), nullable=True),
        make_column("nvlink_received_bytes_per_s", pa.int64(), nullable=True),
    ]
)


#: Everything with a duration: kernels, copies, CPU operators, annotations. ``category`` is Kineto's ``cat``
#: (cpu_op, user_annotation, kernel, gpu_memcpy, ...), in current terms even if the file is older. ``stream``
#: is null off the device. ``correlation`` links device work to the host's call, ``external_id`` to the
#: operator. ``bytes`` is the size of a copy.
EVENTS = pa.schema(
    [
        make_column("start_ns", pa.int64()),
        make_column("duration_ns", pa.int64()),
        make_column("category", TEXT),
        make_column("name", TEXT),
        make_column("thread", pa.int64()),
        make_column("stream", pa.int64(), nullable=True),
        make_column("correlation", pa.int64(), nullable=True),
        make_column("external_id", pa.int64(), nullable=True),
        make_column("bytes", pa.int64(), nullable=True),
    ]
)

#: One row per collective that this rank executed.
#:
#: ``group`` is the sorted global ranks ("0,1,2"), followed by a suffix that distinguishes groups over the
#: same ranks ("0,1,2#mesh_fsdp"); "pg:<name>" if its ranks are unknown, "stream:<id>" (size 0) if nothing is
#: known. ``sequence`` counts within the group; for sends and receives, per peer. ``bytes`` is the full
#: (gathered) tensor, 0 if unknown (a gap says so).
#: start/end: when it ran. The row of a kernel has exactly the start, end and stream of its event. A
#: collective that runs on copy engines has one row from the start of its first copy to the end of its last,
#: on the stream of the first (method "copies"); its copies are within that interval.
#: launch_*: the host's call. wait_*: the host was blocked waiting for its result.
#: ``peer_rank`` is the global rank of the other side of a send or recv, and the root of a one-sided kind.
#: ``method`` is the reader's method that produced the row (range, gloo_fifo, nccl, copies, operator,
#: kernel_name, ...), followed by "_order" if ``sequence`` is only the order on this rank.
COLLECTIVES = pa.schema(
    [
        make_column("kind", TEXT),
        make_column("group", TEXT),
        make_column("group_size", pa.int32()),
        make_column("sequence", pa.int64()),
        make_column("dtype", TEXT),
        make_column("bytes", pa.int64()),
        make_column("start_ns", pa.int64()),
        make_column("end_ns", pa.int64()),
        make_column("launch_start_ns", pa.int64(), nullable=True),
        make_column("launch_end_ns", pa.int64(), nullable=True),
        make_column("wait_start_ns", pa.int64(), nullable=True),
        make_column("wait_end_ns", pa.int64(), nullable=True),
        make_column("unit", TEXT, nullable=True),
        make_column("stream", pa.int64(), nullable=True),
        make_column("peer_rank", pa.int64(), nullable=True),
        make_column("method", TEXT),
    ]
)

#: Points in time: step_begin, step_end (name: what marked the step of an imported trace), window_begin,
#: window_end (name: init, memory, time or oom), phase (name: the phase that starts), ping_begin, ping_end
#: (number: index of the ping). From a CUDA allocator's history: annotation_begin, annotation_end (name: the
#: program's name of the range, number: the device), annotation (a text of the program, without an end), and
#: for each failed allocation at the same time: oom (name: the device, number: its free bytes, -1 if unknown),
#: oom_request (number: the requested bytes; the only one in a recording), oom_driver_request (number: the
#: bytes of the segment that the driver was asked for), oom_stack (number: its stack, if known), oom_pool
#: (name: the private pool that the request was for, number: the device; absent for the common pool).
#: From a watch: stuck (number: nanoseconds without progress when the rank's state was saved) and resumed
#: (number: total nanoseconds of the stall).
#: ``thread_cpu_ns``: processor time used so far by the thread of the training loop, in step_begin and
#: step_end of a recording; ``thread_queued_ns``: time so far in which it was ready to run but waited for a
#: processor (Linux).
MARK = pa.schema(
    [
        make_column("time_ns", pa.int64()),
        make_column("kind", TEXT),
        make_column("number", pa.int64()),
        make_column("name", TEXT),
        make_column("thread_cpu_ns", pa.int64(), nullable=True),
        make_column("thread_queued_ns", pa.int64(), nullable=True),
    ]
)

#: One row per operation in a rank's flight recorder, oldest first. ``group`` is the name of the process
#: group, ``group_id`` its number on this rank. ``sequence`` counts the collectives of the group,
#: ``p2p_sequence`` its sends and receives. ``operation`` has no backend: all_reduce, send 0->3 (ranks within
#: the group). ``input_sizes`` is compact JSON ("[[4096,5120],[8]]"), ``input_dtypes`` separated by commas.
#: ``state``: scheduled (the host has entered it), started, completed. ``is_retired``: the backend waits no
#: longer for it. Times are wall-clock times. ``stack`` numbers the stacks of ``flight_stack``, which has the
#: columns of ``stack``: where the host entered it.
FLIGHT = pa.schema(
    [
        make_column("record_id", pa.int64()),
        make_column("group", TEXT),
        make_column("group_id", pa.int64()),
        make_column("backend", TEXT),
        make_column("operation", TEXT),
        make_column("is_p2p", pa.bool_()),
        make_column("sequence", pa.int64()),
        make_column("p2p_sequence", pa.int64()),
        make_column("op_id", pa.int64()),
        make_column("input_sizes", TEXT),
        make_column("input_dtypes", TEXT),
        make_column("output_sizes", TEXT),
        make_column("output_dtypes", TEXT),
        make_column("state", TEXT),
        make_column("is_retired", pa.bool_()),
        make_column("created_ns", pa.int64(), nullable=True),
        make_column("started_ns", pa.int64(), nullable=True),
        make_column("completed_ns", pa.int64(), nullable=True),
        make_column("timeout_ms", pa.int64(), nullable=True),
        make_column("stack", pa.int64(), nullable=True),
    ]
)

#: One row per process group of a rank. ``ranks``: global ranks in the order of the group ("0,4,8"), empty if
#: unknown. ``last_*``: the highest sequence number that was enqueued, started, completed (for a group of
#: sends and receives, of their own counter); null if unknown.
FLIGHT_GROUP = pa.schema(
    [
        make_column("group", TEXT),
        make_column("group_id", pa.int64(), nullable=True),
        make_column("description", TEXT),
        make_column("ranks", TEXT),
        make_column("last_enqueued", pa.int64(), nullable=True),
        make_column("last_started", pa.int64(), nullable=True),
        make_column("last_completed", pa.int64(), nullable=True),
    ]
)

#: Position of each thread of the process when a watch found no progress. ``stack`` numbers ``flight_stack``.
FLIGHT_THREAD = pa.schema(
    [
        make_column("thread", pa.int64()),
        make_column("name", TEXT),
        make_column("is_main", pa.bool_()),
        make_column("stack", pa.int64()),
    ]
)

#: One row per operation of a pipeline-parallel job, of all its ranks: a table of the run, not of a rank.
#: ``operation`` is its type ("forward-compute"), ``sequence`` its number among its type in a step of a
#: worker, in the order of starts. ``chunk`` and ``model_chunk`` number the model chunks (virtual stages) of
#: the stage and of the model, ``micro_batch`` the micro-batches; each is -1 for operations that have none.
OPERATIONS = pa.schema(
    [
        make_column("dp_rank", pa.int64()),
        make_column("stage", pa.int64()),
        make_column("rank", pa.int64()),
        make_column("step", pa.int64()),
        make_column("operation", TEXT),
        make_column("start_ns", pa.int64()),
        make_column("duration_ns", pa.int64()),
        make_column("sequence", pa.int64()),
        make_column("chunk", pa.int64()),
        make_column("model_chunk", pa.int64()),
        make_column("micro_batch", pa.int64()),
    ]
)

#: One row per operation and rank, from the files of NCCL's Inspector. ``communicator``: its id; ``name``: the
#: program's, or "unknown"; ``rank``: the number of the rank in the communicator, which has so many ``ranks``
#: on so many ``nodes``. ``operation``: NCCL's name ("AllReduce"), ``sequence``: its number in the
#: communicator among operations of this name (of a message: among the messages of the rank). ``bytes``: as in
#: the file, of one rank. ``timing``: source of the duration ("kernel_gpu"; "" if not stated). ``dumped_ns``:
#: when the line was written; ``start_ns``: first start of a kernel on the host's clock, in verbose files
#: only.
INSPECTOR = pa.schema(
    [
        make_column("communicator", TEXT),
        make_column("name", TEXT),
        make_column("rank", pa.int64()),
        make_column("ranks", pa.int64()),
        make_column("nodes", pa.int64()),
        make_column("host", TEXT),
        make_column("process", pa.int64()),
        make_column("operation", TEXT),
        make_column("algorithm", TEXT),
        make_column("timing", TEXT),
        make_column("sequence", pa.int64()),
        make_column("peer", pa.int64(), nullable=True),
        make_column("bytes", pa.int64()),
        make_column("duration_ns", pa.int64()),
        make_column("bus_bytes_per_s", pa.float64(), nullable=True),
        make_column("dumped_ns", pa.int64()),
        make_column("start_ns", pa.int64(), nullable=True),
    ]
)

#: One row per process group that a trace describes. ``group``: its name in ``collectives``; ``description``:
#: the program's ("mesh_dp_shard", "TENSOR_MODEL_PARALLEL_GROUP").
PROCESS_GROUP = pa.schema([make_column("group", TEXT), make_column("description", TEXT)])

TABLES: dict[str, pa.Schema] = {
    "events": EVENTS,
    "collectives": COLLECTIVES,
    "alloc": ALLOC,
    "role": ROLE,
    "mark": MARK,
    "samples": SAMPLES,
    "stack": STACK,
    "host_sample": HOST_SAMPLE,
    "host_stack": STACK,
    "block": BLOCK,
    "segment": SEGMENT,
    "device": DEVICE,
    "flight": FLIGHT,
    "flight_group": FLIGHT_GROUP,
    "flight_stack": STACK,
    "flight_thread": FLIGHT_THREAD,
    "operations": OPERATIONS,
    "inspector": INSPECTOR,
    "process_group": PROCESS_GROUP,
    # the same tables for the window before the first step
    "init_alloc": ALLOC,
    "init_role": ROLE,
    # the same tables for the moment of a failed allocation outside of the windows
    "oom_alloc": ALLOC,
    "oom_role": ROLE,
}
#: Tables of a whole job, which are not divided by rank; the manifest has a field of each name.
JOB_TABLES = ("operations", "inspector")
