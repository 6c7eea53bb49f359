"""The texts of gaps of imported traces, snapshots, flight recorders and logs; see ``gap_texts``."""

from zprof.model.gaps import GapKind, GapText

_COPY_AGAIN = "copy the file again, or export the trace again"
_CALL_STEP = "call prof.step() at the end of each step (torch.profiler.profile(schedule=...))"
_RECORD_CPU = "record with ProfilerActivity.CPU too, on torch 2.4 or newer"
_ALL_THREADS = "profile with CPU operators and all threads (profile_all_threads=True)"
_DUMP_AGAIN = "dump the flight recorder again"
_DUMP_OR_REPORT = "dump the flight recorder again; if it fails again, please report it"
_NAME_FILES = "put rank0, rank1, ... into the file names"
_RECORD_HISTORY = (
    "call torch.cuda.memory._record_memory_history before the model is built, with a larger max_entries"
)
_DUMP_SNAPSHOT = "dump the snapshot again, with a current torch"
_REPORT = "please report this; training was not affected"
TEXTS = {
    # Imported files.
    "file_refused": GapText(GapKind.FILE, "file not imported", "{file}: {reason}", "{hint}"),
    "file_refused_without_hint": GapText(
        GapKind.FILE, "file not imported", "{file}: {reason}", "copy the file again"
    ),
    "files_refused": GapText(
        GapKind.FILE, "file not imported", "{files} more files were not imported", "copy the files again"
    ),
    "trace_rank_guessed": GapText(GapKind.FILE, "ranks of the files", "{note}", _NAME_FILES),
    "snapshot_rank_guessed": GapText(GapKind.FILE, "ranks of the snapshots", "{note}", _NAME_FILES),
    "world_size_contradicted": GapText(
        GapKind.FILE,
        "world size",
        "the traces state a world size of {stated}, but one of them is from rank {last}",
        "export traces after init_process_group and before destroy_process_group, to include it",
    ),
    "world_size_unknown": GapText(
        GapKind.FILE,
        "world size",
        "no trace states the world size: assuming {assumed} ranks from the highest rank",
        "export traces after init_process_group and before destroy_process_group, to include it",
    ),
    # Files of NCCL's Inspector.
    "inspector_lines_damaged": GapText(
        GapKind.FILE,
        "lines of NCCL's Inspector",
        "{count} of {lines} lines are unusable and left out ({reason})",
        "copy the files again; the last line of a killed rank may be incomplete",
    ),
    "inspector_without_time": GapText(
        GapKind.COLLECTIVES,
        "operations without a time",
        "{count} operations have a kernel time of 0 and are left out",
        "record with kernel times (NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=1)",
    ),
    "inspector_operations_lost": GapText(
        GapKind.COLLECTIVES,
        "operations that were overwritten",
        "the plugin overwrote {count} operations in {communicators} communicators of ranks before they were "
        "written",
        "write more often (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS), or keep more "
        "(NCCL_INSPECTOR_DUMP_COLL_RING_SIZE)",
    ),
    "inspector_communicators_excess": GapText(
        GapKind.COLLECTIVES,
        "communicators",
        "{count} operations of further communicators are left out; at most {most} are read",
        "pass the files of fewer ranks",
    ),
    "inspector_files_cut": GapText(
        GapKind.FILE,
        "long files",
        "of {files} files only the first {rows} operations are read",
        "pass the files of fewer ranks, or of less time",
    ),
    # Traces.
    "trace_trailing_bytes": GapText(
        GapKind.FILE,
        "trace file",
        "{count} trailing bytes after the gzip stream were ignored",
        _COPY_AGAIN,
    ),
    "trace_cut_short": GapText(
        GapKind.FILE,
        "trace file",
        "the file is truncated; the events before the end are used",
        _COPY_AGAIN,
    ),
    "trace_repaired": GapText(
        GapKind.FILE,
        "trace file",
        "{count} of {events} events were not valid JSON and were repaired",
        _COPY_AGAIN,
    ),
    "trace_dropped": GapText(
        GapKind.FILE,
        "trace file",
        "{count} of {events} events could not be read and were dropped",
        _COPY_AGAIN,
    ),
    "trace_without_time": GapText(
        GapKind.FILE,
        "trace file",
        "{count} of {events} events have an invalid time (ts or dur is missing, negative, not a number or "
        "out of range, or both are 0) and were dropped; their time is not counted",
        _COPY_AGAIN,
    ),
    "trace_without_name": GapText(
        GapKind.FILE, "trace file", "{count} of {events} events lack a valid name, cat or ph", _COPY_AGAIN
    ),
    "trace_names_dropped": GapText(
        GapKind.FILE,
        "trace file",
        "{count} of {events} events have names or arguments that exceed the size limits; these were dropped",
        _COPY_AGAIN,
    ),
    "trace_resolution": GapText(
        GapKind.FILE,
        "trace file",
        "its timestamps have a resolution of {count} ns",
        "record with torch 2.4 or newer, which writes nanoseconds",
    ),
    "device_not_understood": GapText(
        GapKind.UNKNOWN_DEVICE,
        "time of the device",
        "lanes of an accelerator that zprof does not understand: {lanes:list}; the host's time is not the "
        "device's, so no time was measured",
        "read times in the viewer of the accelerator's vendor; zprof measures traces whose device work has "
        "the category kernel (CUDA, ROCm, XPU) or the lanes of Ascend Hardware",
    ),
    "ascend_tasks_unknown": GapText(
        GapKind.DEVICE,
        "tasks of the device",
        "{count} tasks on the device's streams are of types that zprof does not know, and count as idle: "
        "{tasks:list}",
        "please report these types of tasks",
    ),
    "step_empty": GapText(
        GapKind.STEPS,
        "steps",
        "step {number} is empty (the profiler stopped right after its start) and was dropped",
        "stop the profiler within prof.step()",
    ),
    "steps_incomplete": GapText(
        GapKind.STEPS,
        "steps",
        "the file is truncated and contains step {numbers} only in part: its device work is unknown, and the "
        "step was dropped",
        _COPY_AGAIN,
    ),
    "steps_overlapping": GapText(
        GapKind.STEPS,
        "steps",
        "{steps} marked steps overlap others, are duplicates, or are on another thread, and were dropped",
        "call prof.step() once at the end of each step, on one thread",
    ),
    "steps_of_device": GapText(
        GapKind.STEPS,
        "steps",
        "the trace has only the device's step annotations, which start and end with device work",
        "profile ProfilerActivity.CPU too",
    ),
    "steps_by_optimizer": GapText(
        GapKind.STEPS,
        "steps",
        "the trace has no step marks: the time between the ends of its {updates} optimizer steps counts as "
        "{steps} steps, and the rest was dropped",
        _CALL_STEP,
    ),
    "whole_trace_is_step": GapText(
        GapKind.STEPS,
        "steps",
        "the trace has no step marks: the entire trace counts as one step",
        _CALL_STEP,
    ),
    # Collectives of traces.
    "ranges_incomplete": GapText(
        GapKind.COLLECTIVES,
        "ranges of collectives",
        "{ranges} ::comm ranges lack kind, pg, seq or bytes",
        "write them as described in docs/recording.md",
    ),
    "collectives_in_graphs": GapText(
        GapKind.COLLECTIVES,
        "metadata of collectives",
        "{count} of {collectives} collectives were launched by a CUDA graph, whose kernels have no metadata: "
        "the kind comes from the kernel name; group, size and type are unknown",
        "record some steps without graphs (torch.compile without mode=reduce-overhead)",
    ),
    "collectives_without_metadata": GapText(
        GapKind.COLLECTIVES,
        "metadata of collectives",
        "{count} of {collectives} collectives on the device and their launches carry no metadata: the kind "
        "comes from the kernel name; group, size and type are unknown",
        _RECORD_CPU,
    ),
    "collectives_without_ranks": GapText(
        GapKind.COLLECTIVES,
        "process group of collectives",
        "the ranks of the process group of {count} of {collectives} collectives are not in the trace",
        _RECORD_CPU,
    ),
    "collectives_without_size": GapText(
        GapKind.COLLECTIVES,
        "bytes of collectives",
        "the size of {count} of {collectives} collectives is not in the trace",
        "record with record_shapes=True, on torch 2.4 or newer",
    ),
    "collectives_without_launch": GapText(
        GapKind.COLLECTIVES,
        "launches of collectives",
        "the calls that launched {count} of {collectives} collectives are not in the trace: they happened "
        "before the window, or host calls were not recorded",
        "start the window at the start of a step, with the device idle, and with ProfilerActivity.CPU",
    ),
    "no_gpu_work_of_collectives": GapText(
        GapKind.COLLECTIVES,
        "collectives on the device",
        "the host launched {calls} NCCL collectives, but the trace has no GPU work",
        "record with ProfilerActivity.CUDA, and let the last step finish before the window ends",
    ),
    "no_kernel_of_collectives": GapText(
        GapKind.COLLECTIVES,
        "collectives on the device",
        "the host launched {calls} NCCL collectives, but the trace has no kernel or copy that belongs to one",
        "record with ProfilerActivity.CUDA, and let the last step finish before the window ends",
    ),
    "gloo_group_unknown": GapText(
        GapKind.COLLECTIVES,
        "process group of collectives",
        "the program has several process groups with different ranks, and gloo events do not identify the "
        "group: it is unknown for {count} of {collectives} collectives",
        "write a ::launch range with pg=… around each collective (docs/recording.md)",
    ),
    "gloo_size_unknown": GapText(
        GapKind.COLLECTIVES,
        "bytes of collectives",
        "{count} of {collectives} gloo collectives have no tensor shape: shapes were not recorded",
        "profile with record_shapes=True",
    ),
    "gloo_some_unmatched": GapText(
        GapKind.COLLECTIVES,
        "collectives of gloo",
        "{launches} launches and {executions} executions of {operator} do not match; the {matched} that "
        "belong together are counted",
        "record again; one ::launch range per collective (docs/recording.md) makes them unambiguous",
    ),
    "gloo_none_matched": GapText(
        GapKind.COLLECTIVES,
        "collectives of gloo",
        "{launches} launches and {executions} executions of {operator} do not match; none of them is counted",
        "record again; one ::launch range per collective (docs/recording.md) makes them unambiguous",
    ),
    "gloo_without_launches": GapText(
        GapKind.COLLECTIVES,
        "launches of collectives",
        "the trace has {executions} gloo executions but no operators that launched them: they are ordered by "
        "start, and a reduce-scatter cannot be distinguished from an all-reduce",
        _ALL_THREADS,
    ),
    "messages_without_wait": GapText(
        GapKind.COLLECTIVES,
        "point-to-point messages",
        "{posts} sends or receives were posted but not waited for within the window: their end is unknown, "
        "and they are not counted",
        "wait for every isend and irecv before the step ends",
    ),
    "messages_without_post": GapText(
        GapKind.COLLECTIVES,
        "point-to-point messages",
        "the operators that posted {count} of {messages} messages are not in the trace: the peer is unknown, "
        "and they are not compared with its side",
        _ALL_THREADS,
    ),
    "messages_without_peer": GapText(
        GapKind.COLLECTIVES,
        "point-to-point messages",
        "the peer of {count} of {messages} messages is unknown (any source, shapes not recorded, or several "
        "possible process groups): they are not compared with its side",
        "record shapes, pass the source of each receive, and write a ::launch range with pg=… around each "
        "message (docs/recording.md) where groups differ",
    ),
    # Flight recorders and logs.
    "dump_rank_unknown": GapText(
        GapKind.FILE,
        "ranks of the dumps",
        "{note}",
        "put the rank at the end of each file's name, as PyTorch does",
    ),
    "dump_rank_contradicted": GapText(
        GapKind.FILE,
        "ranks of the dumps",
        "the rank in the name of its file is not in all process groups of the dump",
        "put the rank at the end of each file's name, as PyTorch does",
    ),
    "dump_of_other_rank": GapText(
        GapKind.FILE,
        "ranks of the dumps",
        "the rank in the name of its file is not in all process groups of the dump: rank {only} is",
        "put the rank at the end of each file's name, as PyTorch does",
    ),
    "dump_version_unknown": GapText(
        GapKind.FILE,
        "version of the dump",
        "it is {version}, and only {known}.x is known",
        "check the operations against the program",
    ),
    "dump_stacks_damaged": GapText(
        GapKind.FILE,
        "stacks of the flight recorder",
        "{damaged} of {stacks} stacks are not in torch's format or exceed the limits",
        _DUMP_OR_REPORT,
    ),
    "dump_without_entries": GapText(
        GapKind.FILE, "operations of the flight recorder", "entries is null", _DUMP_OR_REPORT
    ),
    "dump_entries_damaged": GapText(
        GapKind.FILE,
        "operations of the flight recorder",
        "{damaged} of {entries} entries are not in torch's format ({examples})",
        _DUMP_OR_REPORT,
    ),
    "dump_groups_damaged": GapText(
        GapKind.FILE, "process groups ({key})", "not in torch's format: {damaged:list}", _DUMP_AGAIN
    ),
    "dump_groups_contradict": GapText(
        GapKind.FILE,
        "progress of process groups",
        "the numbers of the groups do not fit their names in the entries ({groups:list})",
        _DUMP_AGAIN,
    ),
    "dump_groups_unpaired": GapText(
        GapKind.FILE,
        "progress of process groups",
        "it has {names} names and {numbers} numbers of groups, which do not pair ({groups:list})",
        _DUMP_AGAIN,
    ),
    "log_lines_unread": GapText(
        GapKind.FILE,
        "lines of the logs",
        "{lines} lines look like evidence of a hang, and are cut or in no known form",
        "pass the file itself, not a copy of what a terminal showed",
    ),
    "ras_ranks_unknown": GapText(
        GapKind.FILE,
        "ranks of unreachable processes",
        "NCCL's RAS names {processes} processes that do not answer, and no communicator of all ranks tells "
        "which ranks they are",
        "ncclras -f json",
    ),
    "logs_skipped": GapText(
        GapKind.FILE,
        "lines of the logs",
        "of {logs} logs only the start and the end were read: they are very long",
        "pass what the ranks wrote in the minutes before the job ended",
    ),
    # Memory snapshots.
    "snapshot_without_trace": GapText(
        GapKind.BEFORE_HISTORY,
        "allocator history",
        "{device}: the snapshot has no trace for this device, only its memory at the time of the snapshot",
        _RECORD_HISTORY,
    ),
    "history_starts_at_time": GapText(
        GapKind.BEFORE_HISTORY,
        "allocator history",
        "{device}: the history starts at {start}; any earlier peak and the origin of {blocks:,} blocks "
        "({size:bytes}) are unknown",
        _RECORD_HISTORY,
    ),
    "history_starts_at_entry": GapText(
        GapKind.BEFORE_HISTORY,
        "allocator history",
        "{device}: the history starts at its first entry; any earlier peak and the origin of {blocks:,} "
        "blocks ({size:bytes}) are unknown",
        _RECORD_HISTORY,
    ),
    "history_kinds_unknown": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "allocator history",
        "{device}: {entries} entries are of kinds that this version does not support ({kinds:list})",
        "upgrade zprof",
    ),
    "history_contradicts_segments": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "allocator history disagrees",
        "{device}: the trace and the segments disagree: {contradictions}",
        _DUMP_SNAPSHOT,
    ),
    "history_without_segments": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "allocator state",
        "{device}: the snapshot has no segments, so its trace could not be checked against them",
        _DUMP_SNAPSHOT,
    ),
    "history_without_times": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "times of the allocator history",
        "{device}: some entries have no time; their order is used instead",
        _DUMP_SNAPSHOT,
    ),
    "history_clock_jumps": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "times of the allocator history",
        "{device}: the clock of the trace jumps back by up to {backstep_ns} ns",
        _DUMP_SNAPSHOT,
    ),
    "free_requests_skipped": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "blocks awaiting free",
        "{device}: the trace has no free_requested entries, so the time of free_completed is used",
        "record without skip_actions",
    ),
    "free_completions_skipped": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "blocks awaiting free",
        "{device}: the trace has no free_completed entries, so the time of free_requested is used",
        "record without skip_actions",
    ),
    "block_sizes_estimated": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "sizes of freed blocks",
        "{device}: {blocks} blocks in use differ in size from torch's rounding rule; the sizes of freed "
        "blocks within their segments are estimates",
        "compare the peak with the allocator's counters",
    ),
}
#: Parts of ``history_contradicts_segments``.
SEGMENT_CONTRADICTIONS = {
    "overlaps": "{count} blocks allocated at an address in use",
    "missing": "{count} blocks in use that are missing in the segments",
    "resized": "{count} blocks with a different size in the segments",
    "inconsistent": "{count} entries that contradict the segments",
}
