"""The texts of gaps of recordings, and of missing ranks; see ``gap_texts``."""

from zprof.model.gaps import GapKind, GapText

_REPORT = "please report this; training was not affected"
_SEE_REASON = "see the reason; the rest of the recording and training are not affected"
_FULL_MODE = "record memory in full mode"
_LEAVE_HISTORY = "let zprof record it: do not call torch.cuda.memory._record_memory_history in the window"
_LOOK_AT_PROCESS = "look at process {process} on {host} with py-spy dump or gdb while it hangs"
_SAME_STEPS = (
    "call zprof.record on every rank with the same steps; until then, clocks are aligned with the program's "
    "collectives"
)
TEXTS = {
    # A recording that did not go as planned.
    "program_failed": GapText(
        GapKind.PROGRAM_FAILED,
        "end of the program",
        "the program ended in step {step} with {error}",
        "the steps before are valid; see the program's traceback",
    ),
    "program_failed_after_steps": GapText(
        GapKind.PROGRAM_FAILED,
        "end of the program",
        "the program ended after its recorded steps with {error}",
        "the steps before are valid; see the program's traceback",
    ),
    "recording_cut_short": GapText(
        GapKind.RECORDING_CUT_SHORT,
        "recording cut short",
        "the program ended after {steps} of {scheduled} scheduled steps",
        "let the program run longer, or record fewer steps: zprof.steps(skip=…, memory=…, time=…), or zprof "
        "record --skip-steps … --memory-steps … --time-steps …",
    ),
    "updates_skipped": GapText(
        GapKind.SKIPPED_STEPS,
        "update of step {steps:list8}",
        "the gradients overflowed, and the loss scale was lowered instead of updating the model",
        "record later steps (--skip-steps), after the loss scale has settled",
    ),
    "step_ends_uncertain": GapText(
        GapKind.STEP_BOUNDARIES,
        "end of step {steps:list8}",
        "the optimizer that ended steps before no longer stepped: the step holds several updates",
        "record a part of the program in which the same optimizers step (--skip-steps)",
    ),
    "optimizer_replaced": GapText(
        GapKind.STEPS,
        "steps before step {steps:list8}",
        "they are of another optimizer, as those of a learning-rate finder",
        "record only later steps: --skip-steps {last}",
    ),
    "disk_full": GapText(
        GapKind.DISK_FULL,
        "disk full",
        "{what} could not be written: {error}",
        "free disk space for the run directory or raise the quota, then record again",
    ),
    "recorder_failed": GapText(GapKind.RECORDING, "{what}", "{error}", _REPORT),
    "watch_failed": GapText(GapKind.RECORDING, "watch for stalls", "{error}", _REPORT),
    "stacks_not_sampled": GapText(
        GapKind.RECORDING,
        "lines of the program",
        "its Python stacks could not be sampled: {error}",
        _REPORT,
    ),
    "threads_not_profiled": GapText(
        GapKind.RECORDING,
        "threads other than the main thread",
        "this torch cannot profile all threads",
        "use torch 2.8 or newer",
    ),
    "profiler_taken_over": GapText(
        GapKind.RECORDING,
        "time window",
        "the program ran its own torch profiler within the window",
        "turn that profiler off, or record other steps",
    ),
    "waits_not_recordable": GapText(
        GapKind.EXPOSED_TIME,
        "waits for collectives",
        "{error}",
        "write ::wait ranges (docs/recording.md), or use a newer torch",
    ),
    "model_by_size": GapText(
        GapKind.RECORDING,
        "identity of the trained model",
        "no module holds the optimized tensors; the largest one was used: {models:list}",
        "call zprof.record(model=…) in the program",
    ),
    # Clock pings.
    "pings_without_all_ranks": GapText(
        GapKind.CLOCKS, "clock pings", "not every rank started recording in time", _SAME_STEPS
    ),
    "pings_of_different_steps": GapText(
        GapKind.CLOCKS, "clock pings", "the ranks record different steps", _SAME_STEPS
    ),
    "pings_ended_early": GapText(
        GapKind.CLOCKS,
        "clock pings",
        "a rank ended its recording before the last scheduled step",
        _SAME_STEPS,
    ),
    "pings_without_group": GapText(
        GapKind.CLOCKS,
        "clock pings",
        "could not create a process group for pings: {error}",
        _SAME_STEPS,
    ),
    "ping_failed": GapText(GapKind.CLOCKS, "clock pings", "a ping failed: {error}", _SAME_STEPS),
    # Devices.
    "nvml_not_installed": GapText(
        GapKind.DEVICE, "device counters", "pynvml cannot be imported: {error}", "{command}"
    ),
    "nvml_failed": GapText(GapKind.DEVICE, "device counters", "{reason}", "{remedy}"),
    "no_driver": GapText(
        GapKind.DEVICE,
        "device counters",
        "this process does not see an NVIDIA driver (/dev/nvidiactl)",
        "in a container, expose the GPUs with the NVIDIA runtime; GPUs of other vendors are not supported",
    ),
    "driver_hangs": GapText(
        GapKind.DEVICE,
        "device counters",
        "the driver does not respond",
        "check nvidia-smi and the kernel log (Xid)",
    ),
    "device_counters_failed": GapText(GapKind.DEVICE, "device counters", "{error}", _REPORT),
    "device_queries_failed": GapText(
        GapKind.DEVICE, "counters of {device}: {counters:list}", "{reason}", "{remedy}"
    ),
    "device_samples_sparse": GapText(
        GapKind.DEVICE,
        "regular device samples",
        "{delayed} of {samples} samples took so long that the next one was delayed; in total, sampling took "
        "{cost_ms:.0f} ms in {total_s:.0f} s",
        "the driver responds slowly: check if another monitor polls it often",
    ),
    "groups_not_watched": GapText(
        GapKind.DEVICE_MEMORY,
        "device memory of process groups",
        "first collectives were no longer watched: {error}",
        _REPORT,
    ),
    # Memory.
    "model_not_given": GapText(
        GapKind.MEMORY_PART,
        "memory: split of parameters and optimizer master weights",
        "the model was not given: all tensors that an optimizer updates count as parameters",
        "pass model=",
    ),
    "operators_not_recorded": GapText(
        GapKind.MEMORY_PART,
        "operator workspaces, and communication buffers other than gathered parameters",
        "light mode records hooks, not operators",
        _FULL_MODE,
    ),
    "saved_tensors_of_first_step": GapText(
        GapKind.MEMORY_PART,
        "activations after the first step of the memory window",
        "light mode records saved tensors in the first step only",
        "use the peak of the window, which covers the first step, or record memory in full mode",
    ),
    "no_memory_at_stall": GapText(
        GapKind.MEMORY_PART,
        "memory by tenant when the rank made no progress",
        "no step of the memory window had ended before",
        "record memory earlier: --skip-steps 2 --memory-steps 2",
    ),
    "memory_part_failed": GapText(GapKind.MEMORY_PART, "memory: {what}", "{error}", _SEE_REASON),
    "memory_window_failed": GapText(
        GapKind.MEMORY_PART, "memory of this window ({what})", "{error}", _REPORT
    ),
    "hooks_left": GapText(
        GapKind.MEMORY_PART,
        "saved-tensor hooks left in place",
        "the window ended on a different thread than it started on, or where torch forbids hooks",
        "create the model on the thread that trains it",
    ),
    "init_of_fork": GapText(
        GapKind.MEMORY_PART,
        "memory before the first step",
        "this process was forked from one that had started to build the model; earlier memory was not "
        "recorded",
        "start the ranks with torchrun or with spawn",
    ),
    "init_too_long": GapText(
        GapKind.MEMORY_PART,
        "memory before the first step",
        "the first step came too late: recording ended after {limit}",
        "the recorded part is valid; --no-init disables this window",
    ),
    "init_without_parameters": GapText(
        GapKind.MEMORY_PART,
        "memory before the first step",
        "no module registered a parameter where zprof could record it",
        "none for programs that train tensors outside modules",
    ),
    "allocator_history_failed": GapText(
        GapKind.ALLOCATOR_HISTORY, "memory: allocator history", "{error}", _REPORT
    ),
    "allocator_history_in_use": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "memory: allocator history",
        "the program records its own, which zprof does not change",
        _LEAVE_HISTORY,
    ),
    "allocator_history_turned_off": GapText(
        GapKind.ALLOCATOR_HISTORY,
        "memory: allocator history",
        "the program turned it off within the window",
        _LEAVE_HISTORY,
    ),
    # Ranks that make no progress.
    "flight_recorder_missing": GapText(
        GapKind.COLLECTIVES,
        "flight recorder",
        "{error}",
        "use torch 2.8 or newer, and set TORCH_FR_BUFFER_SIZE=2000 (zprof doctor)",
    ),
    "rank_held_up": GapText(
        GapKind.COLLECTIVES,
        "flight recorder",
        "the rank could not save itself: its Python threads were held up (the GIL was not released); its "
        "progress is that of the last look before",
        _LOOK_AT_PROCESS,
    ),
    "rank_silent": GapText(
        GapKind.COLLECTIVES,
        "flight recorder",
        "the rank could not save itself: {detail}; its progress is that of the last look before",
        _LOOK_AT_PROCESS,
    ),
    # Ranks and tables of a run.
    "ranks_not_imported": GapText(
        GapKind.FILE,
        "ranks missing",
        "no files were given for {missing} of {ranks} ranks",
        "import the files of all ranks together",
    ),
    "rank_without_data": GapText(
        GapKind.RANK_MISSING,
        "rank missing",
        "this rank wrote no data",
        "check this rank's log; record again with all ranks running",
    ),
    "rank_missing_before_steps": GapText(
        GapKind.RANK_MISSING,
        "rank missing",
        "the rank was killed or is still running: its recording ends before its first step",
        "check this rank's log; record again with all ranks running",
    ),
    "rank_missing_after_step": GapText(
        GapKind.RANK_MISSING,
        "rank missing",
        "the rank was killed or is still running: its recording ends after step {last}",
        "check this rank's log; record again with all ranks running",
    ),
    "rank_cut_short_before_steps": GapText(
        GapKind.RANK_CUT_SHORT,
        "rank cut short",
        "the rank was killed or is still running: its recording ends before its first step",
        "check this rank's log; the data written before is used",
    ),
    "rank_cut_short_after_step": GapText(
        GapKind.RANK_CUT_SHORT,
        "rank cut short",
        "the rank was killed or is still running: its recording ends after step {last}",
        "check this rank's log; the data written before is used",
    ),
    "columns_missing": GapText(
        GapKind.RECORDING,
        "columns missing",
        "the files of {affected} of {ranks} ranks lack {columns:list}",
        "record again with this version of zprof",
    ),
}
