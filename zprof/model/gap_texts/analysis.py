"""The texts of gaps that the analysis of a run finds; see ``gap_texts``."""

from zprof.model.gaps import GapKind, GapText

_RECORD_MEMORY = "record again with a memory window: zprof.steps(memory=2)"
_RECORD_FROM_START = "record from the program's start"
_RECORD_HISTORY = "call torch.cuda.memory._record_memory_history before the model is built"
_REPORT_CONTRADICTION = "record again; if the contradiction persists, please report it"
_STATE_FACTS = "set it with report --stage --parameters …, or zprof.record(training=TrainingFacts(…))"
_PASS_FACTS = "pass it to the recorder: zprof.record(..., training=TrainingFacts(...))"
_NO_BLAME = "record again; no rank is blamed for waits in these collectives"
_COMMUNICATING_WINDOW = (
    "measure a window in which the ranks communicate; --window trace measures the entire trace"
)
_ALIGN_CLOCKS = "record with zprof.record on every rank: its clock pings align the clocks"
_WHOLE_TIMELINE = "export the operations of whole steps of all stages and replicas"
TEXTS = {
    "stated_mesh_contradicted": GapText(
        GapKind.COLLECTIVES,
        "roles of process groups",
        "{count} process groups are not along a dimension of the stated mesh {mesh}, or are described "
        "otherwise, and keep their roles: ranks {ranks}",
        "state the sizes in the order of ranks, outermost first: with --mesh dp=2,tp=4, ranks 0 to 3 are a "
        "tensor group",
    ),
    # Slowdown of an operation timeline.
    "only_operations": GapText(
        GapKind.TIME,
        "ledger, collectives, memory",
        "an operation timeline has neither kernels nor collectives nor memory of single ranks",
        "pass traces of its slowest ranks as a second run",
    ),
    "operations_unknown": GapText(
        GapKind.TIME,
        "operations",
        "{count} operations of unknown types are left out of the replay: {names:list8}",
        "rename them to the types that docs/traces.md lists",
    ),
    "operation_steps_left_out": GapText(
        GapKind.STEPS,
        "steps",
        "{count} of {steps} steps are left out: their replicas have different operations, or other "
        "operations than most steps",
        _WHOLE_TIMELINE,
    ),
    "slowdown_stages_missing": GapText(
        GapKind.TIME,
        "slowdown",
        "the timeline has no operations of some stages, only of {stages:list8}",
        _WHOLE_TIMELINE,
    ),
    "slowdown_without_steps": GapText(
        GapKind.TIME, "slowdown", "no step has the same operations in all replicas", _WHOLE_TIMELINE
    ),
    "slowdown_ranks_repeated": GapText(
        GapKind.TIME,
        "slowdown",
        "{workers} workers (replica and stage) have {ranks} different ranks",
        "export the global rank of each worker",
    ),
    "slowdown_without_time": GapText(
        GapKind.TIME, "slowdown", "its ideal step takes no time", "export the durations of the operations"
    ),
    "slowdown_order_contradicts": GapText(
        GapKind.TIME,
        "slowdown",
        "the order of the operations contradicts itself: some of them wait for each other",
        "export the start times of all operations of a step from one clock",
    ),
    "slowdown_passes_unknown": GapText(
        GapKind.TIME,
        "slowdown",
        "rank {rank} does not show {count} forward and {count} backward passes in each step, one per "
        "micro-batch; steps with split backward passes (zero bubble) are not replayed",
        "record with ProfilerActivity.CPU, which tells forward and backward passes apart",
    ),
    # Collectives of NCCL's Inspector.
    "only_collectives": GapText(
        GapKind.TIME,
        "steps, ledger, memory",
        "NCCL's Inspector records the collectives, but neither steps nor computations nor memory: how much "
        "of a step they cost, and what a change would save, is unknown",
        "pass traces of the same ranks as a second run",
    ),
    "communicators_ranks_missing": GapText(
        GapKind.COLLECTIVES,
        "late ranks",
        "{count} communicators lack files of ranks, and nothing is said about who is late in them; the "
        "largest, {name}, lacks {missing} of its {ranks} ranks: {members:list8}",
        "pass the files of all ranks (NCCL_INSPECTOR_DUMP_DIR on a shared file system, or copied from all "
        "hosts)",
    ),
    "communicators_incomplete": GapText(
        GapKind.COLLECTIVES,
        "operations without all ranks",
        "{count} of {operations} operations are not in the files of all ranks, and are not compared by rank",
        "keep more operations (NCCL_INSPECTOR_DUMP_COLL_RING_SIZE), and write them more often",
    ),
    "communicators_lateness_untested": GapText(
        GapKind.COLLECTIVES,
        "late ranks",
        "no communicator has {least} operations with a kernel time of each of its ranks",
        "record longer, and pass the files of all ranks",
    ),
    "communicators_host_times": GapText(
        GapKind.COLLECTIVES,
        "durations",
        "{count} durations are of host calls instead of kernels, and do not show who is late",
        "record with kernel times (NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=1)",
    ),
    "communicators_contradicted": GapText(
        GapKind.COLLECTIVES,
        "contradicting records",
        "{count} operations have two records of a rank, or different sizes on their ranks, and are not "
        "compared by rank",
        "pass the files of one job only",
    ),
    "communicators_sizes_differ": GapText(
        GapKind.COLLECTIVES,
        "sizes of communicators",
        "{count} records state another number of ranks than most of their communicator, and are left out",
        "pass the files of one job only",
    ),
    "communicators_repeated": GapText(
        GapKind.COLLECTIVES,
        "repeated records",
        "{count} records occur twice and count once",
        "pass each file once",
    ),
    "communicators_bandwidths_differ": GapText(
        GapKind.COLLECTIVES,
        "bandwidths",
        "the bus bandwidth in {count} of {records} records is not what their size and duration give; the "
        "figures here are computed",
        "compare the version of the plugin with those that docs/traces.md lists",
    ),
    "communicators_apart": GapText(
        GapKind.COLLECTIVES,
        "several jobs",
        "the communicators are in {count} sets that share no process: several jobs, or groups of one job "
        "that are not connected by any recorded operation",
        "pass the files of one job only",
    ),
    # Time.
    "gpu_work_missing": GapText(
        GapKind.DEVICE,
        "GPU work",
        "this rank used a GPU, but the trace has no GPU work: its time was not measured",
        "record with device activity enabled (ProfilerActivity.CUDA), and check the permission to profile "
        "the GPU",
    ),
    "device_work_missing": GapText(
        GapKind.DEVICE,
        "device work",
        "its trace has no kernels, so there is nothing to compare",
        "record with ProfilerActivity.CUDA, on a rank with a GPU",
    ),
    "time_window_missing": GapText(
        GapKind.TIME,
        "time",
        "no time window was recorded (no table {tables:list})",
        "run the program until its time window ends, or shorten the earlier windows (--memory-steps, "
        "zprof.steps)",
    ),
    "time_window_without_step": GapText(
        GapKind.TIME,
        "time",
        "the time window has no complete step",
        "run the program until its time window ends, or shorten the earlier windows (--memory-steps, "
        "zprof.steps)",
    ),
    "steps_without_marks": GapText(
        GapKind.STEPS, "steps", "{missing} of {steps} steps have no start or end mark", "record again"
    ),
    "steps_without_kernels": GapText(
        GapKind.STEPS,
        "steps",
        "the recording or its file ends before the kernels launched in step {steps:list8}: device activity "
        "is incomplete, so the step is left out",
        "let the device finish before the window ends (one more prof.step()), and copy the complete file",
    ),
    "steps_unequal": GapText(
        GapKind.STEPS,
        "steps",
        "{differing} of {ranks} ranks have steps that other ranks lack: {common} steps are common to all, "
        "and each rank is measured over its own steps",
        "record the same steps on all ranks",
    ),
    "steps_differ_by_rank": GapText(
        GapKind.STEP_BOUNDARIES,
        "steps of the ranks",
        "{differing} of {collectives} collectives are in different steps on different ranks",
        "mark the steps in the same place on every rank, and record again",
    ),
    "python_calls_recorded": GapText(
        GapKind.HOST_TIMES,
        "pace of the hosts",
        "the trace was taken with stacks (with_stack=True): recording each Python call slows the host, "
        "often several times, so idle time and late launches are upper bounds",
        "record times with with_stack=False",
    ),
    "no_training_step": GapText(
        GapKind.NO_BACKWARD,
        "a training step",
        "the recording has no backward and no optimizer step: inference, evaluation, or a forward by itself",
        "record whole training steps, if the job trains",
    ),
    "waits_not_recorded": GapText(
        GapKind.EXPOSED_TIME,
        "exposed time",
        "no wait for a collective was recorded: gaps between operators are used as an upper bound",
        "an engine can record ::wait ranges (docs/recording.md); waits of DDP cannot be recorded",
    ),
    "some_waits_not_recorded": GapText(
        GapKind.EXPOSED_TIME,
        "exposed time",
        "{collectives} collectives have no recorded wait (C++ waits for them): an upper bound is used",
        "record ::wait ranges (docs/recording.md)",
    ),
    "exposed_time_not_split": GapText(
        GapKind.EXPOSED_TIME,
        "exposed wait",
        "{ratio:.0%} of the exposed communication is in collectives with missing or unmatched ranks, where "
        "waiting cannot be separated from transfer: exposed wait is a lower bound, exposed transfer an upper "
        "bound",
        "provide the traces of all ranks, recorded with torch 2.4 or newer (it records process groups)",
    ),
    "clock_not_aligned": GapText(
        GapKind.CLOCKS,
        "clock alignment",
        "it shares no usable collective with the other ranks and runs on another host",
        _ALIGN_CLOCKS,
    ),
    "clocks_not_aligned": GapText(
        GapKind.CLOCKS,
        "clock alignment",
        "{ranks} ranks (from rank {first} on) share no usable collective with the first rank",
        _ALIGN_CLOCKS,
    ),
    # Collectives.
    "collective_kinds_unknown": GapText(
        GapKind.COLLECTIVES,
        "kinds of collectives",
        "this zprof does not know the kind {kinds:list4}: such collectives count as other",
        "upgrade zprof",
    ),
    "no_collectives": GapText(
        GapKind.NO_COLLECTIVES, "collectives", "no collectives found in the window", _COMMUNICATING_WINDOW
    ),
    "no_collectives_of_rank": GapText(
        GapKind.NO_COLLECTIVES, "collectives", "no collectives found in its window", _COMMUNICATING_WINDOW
    ),
    "collectives_disagree": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "{count} in {groups}: the ranks disagree on kind, dtype or bytes",
        _NO_BLAME,
    ),
    "collectives_contradict": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "{count} in {groups}: a rank left before another had entered",
        _NO_BLAME,
    ),
    "collectives_ambiguous": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "{count} in {groups}: neither order nor times identify matching calls",
        _NO_BLAME,
    ),
    "collectives_partial": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "{count} in {groups}: some ranks have no event for these collectives",
        _NO_BLAME,
    ),
    "ranks_not_matched": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "rank {ranks:list} in {groups}: its collectives do not match those of the other ranks at any shift",
        _NO_BLAME,
    ),
    "many_ranks_not_matched": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "rank {ranks:list8} ({count} ranks) in {groups}: its collectives do not match those of the other "
        "ranks at any shift",
        _NO_BLAME,
    ),
    "collectives_without_group": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "{rows} rows have no group: each rank has one stream of them, which was treated as one group",
        "record with a newer PyTorch",
    ),
    "groups_without_ranks": GapText(
        GapKind.MATCHING,
        "matching of collectives",
        "{rows} rows of {groups} do not record the participating ranks and were not matched",
        "record with a newer PyTorch",
    ),
    "ranks_not_loaded": GapText(
        GapKind.MATCHING,
        "wait and transfer",
        "not all ranks of {groups} are loaded: waits are lower bounds, transfers upper bounds",
        "load all ranks of the run",
    ),
    "volume_formula_unknown": GapText(GapKind.VOLUME, "volume", "unknown: {facts:list}", _STATE_FACTS),
    "volume_not_recorded": GapText(GapKind.VOLUME, "volume", "no time window was recorded", _STATE_FACTS),
    "volume_without_sizes": GapText(
        GapKind.VOLUME,
        "volume",
        "{unsized} of {collectives} collectives have no recorded size",
        "profile with record_shapes=True",
    ),
    "volume_of_shards": GapText(
        GapKind.VOLUME,
        "volume",
        "{parts} of {rows} collectives are all-gathers in groups of unknown size: only the size of "
        "a rank's part was recorded",
        "record ranks with a GPU: NCCL's events name their group",
    ),
    "volume_of_replicas": GapText(
        GapKind.VOLUME,
        "volume",
        "all-reduces in groups whose size differs from the sharding group transfer another {size:bytes} "
        "(replicas of shards), which the formula does not include",
        "compare them with twice the bytes of a rank's shard",
    ),
    # Memory.
    "memory_not_in_traces": GapText(
        GapKind.MEMORY,
        "memory",
        "a trace has the times of a job but not its memory",
        "run zprof record -o RUN -- COMMAND, or import a CUDA memory snapshot of the same job",
    ),
    "memory_table_missing": GapText(
        GapKind.MEMORY, "memory", "no table {table!r} was recorded", _RECORD_MEMORY
    ),
    "memory_window_missing": GapText(
        GapKind.MEMORY, "memory", "no memory window was recorded", _RECORD_MEMORY
    ),
    "snapshot_table_missing": GapText(
        GapKind.MEMORY, "memory", "no table {table!r} was imported", "import the snapshot again"
    ),
    "snapshot_without_blocks": GapText(
        GapKind.MEMORY,
        "memory",
        "the snapshot has no memory blocks",
        "dump the snapshot while memory is in use",
    ),
    "no_formula": GapText(
        GapKind.MODEL_STATES,
        "ZeRO formula of the model states",
        "no formula for {states:and}: the bytes per element are unknown",
        _PASS_FACTS,
    ),
    "no_formula_without_stage": GapText(
        GapKind.MODEL_STATES,
        "ZeRO formula of the model states",
        "no formula for {states:and}: the ZeRO stage of the program is unknown",
        _PASS_FACTS,
    ),
    "no_formula_without_parameters": GapText(
        GapKind.MODEL_STATES,
        "ZeRO formula of the model states",
        "no formula for {states:and}: the number of parameters is unknown: some are frozen or lazy, or the "
        "recorder has no model",
        _PASS_FACTS,
    ),
    "no_formula_without_ranks": GapText(
        GapKind.MODEL_STATES,
        "ZeRO formula of the model states",
        "no formula for {states:and}: the number of ranks that share the states is unknown",
        _PASS_FACTS,
    ),
    "allocator_events_missing": GapText(
        GapKind.ALLOCATOR_EVENTS,
        "allocator events",
        "the profiler reported none, so memory allocated inside operators is missing",
        "do not run torch.profiler yourself while zprof records",
    ),
    "light_mode_without_counter": GapText(
        GapKind.MEMORY_PART,
        "coverage of memory",
        "unknown: in light mode hooks see tensors but not memory allocated inside operators, and there is no "
        "allocator counter for the rest; the peak is a lower bound",
        "record in full mode",
    ),
    "peak_below_counter": GapText(
        GapKind.MEMORY_PART,
        "part of the allocated peak",
        "the allocator's own counter reached {counter:bytes} in the window, {missing:bytes} more than "
        "recorded: the peak is a lower bound",
        "record from the start of the program: zprof record -o RUN -- python ...",
    ),
    "peak_above_counter": GapText(
        GapKind.MEMORY_PART,
        "allocated peak",
        "the allocator's own counter never exceeded {counter:bytes}, {excess:bytes} less than recorded: the "
        "peak is an upper bound",
        "use the counter as the total; some frees were not seen",
    ),
    "frees_not_recorded": GapText(
        GapKind.MEMORY_PART,
        "end of some allocations",
        "{size:bytes} of the peak were allocated in {operators:list} without a recorded free: the peak is an "
        "upper bound",
        "none on a CPU; on a GPU the allocator reports every free",
    ),
    "owner_unknown": GapText(
        GapKind.MEMORY_PART,
        "owner of {size:bytes} of the peak",
        "not owned by a recorded model, optimizer, autograd graph, collective or operator of the recorded "
        "steps, such as data sets and copies of weights allocated earlier",
        "check the untagged entries among the largest allocations at the peak; pass all models and "
        "optimizers to the recorder",
    ),
    # Memory of the device.
    "no_device_memory_on_cpu": GapText(
        GapKind.DEVICE_MEMORY,
        "reserved and non-PyTorch memory",
        "the CPU allocator reserves no memory, and no device counter covers this process",
        "record on a GPU",
    ),
    "recorded_device_hidden": GapText(
        GapKind.DEVICE_MEMORY,
        "memory of {other}",
        "this process uses several devices; the report shows the one with the largest peak, {shown}; the "
        "peak of {other} is {peak:bytes}",
        'run one process per device, or read the raw table: run.frame(rank, "alloc")',
    ),
    "snapshot_device_hidden": GapText(
        GapKind.DEVICE_MEMORY,
        "memory of {other}",
        "the snapshot has several devices; the report shows the one with the largest peak, {shown}; the "
        "peak of {other} is {peak:bytes}",
        "read the tables with zprof.load",
    ),
    "device_not_sampled": GapText(
        GapKind.DEVICE_MEMORY,
        "memory outside the allocator",
        "{device}: the device was not sampled",
        "record with NVML available",
    ),
    "process_not_sampled": GapText(
        GapKind.DEVICE_MEMORY,
        "memory outside the allocator",
        "{device}: NVML does not report the memory of this process (a container, MIG or WDDM)",
        "run where NVML can see the process IDs of this host",
    ),
    "group_not_sampled": GapText(
        GapKind.DEVICE_MEMORY,
        "memory of collectives",
        "{device}: NVML did not answer at the first collective of a group",
        "record again",
    ),
    "device_below_process": GapText(
        GapKind.DEVICE_MEMORY,
        "memory outside the allocator",
        "{device}: the device uses less memory than this process, by {size:bytes}: the samples contradict "
        "each other",
        _REPORT_CONTRADICTION,
    ),
    "memory_shrank_at_collective": GapText(
        GapKind.DEVICE_MEMORY,
        "memory outside the allocator",
        "{device}: memory shrank at the first collective of a group, by {size:bytes}: the samples contradict "
        "each other",
        _REPORT_CONTRADICTION,
    ),
    "process_below_collectives": GapText(
        GapKind.DEVICE_MEMORY,
        "memory outside the allocator",
        "{device}: this process has less memory outside its allocator than its collectives allocated, by "
        "{size:bytes}: the samples contradict each other",
        _REPORT_CONTRADICTION,
    ),
    "snapshot_without_samples": GapText(
        GapKind.DEVICE_MEMORY,
        "memory outside the allocator",
        "{device}: a snapshot does not include NVML samples",
        "record the program with zprof record",
    ),
    "snapshot_starts_at_peak": GapText(
        GapKind.DEVICE_MEMORY,
        "allocated peak",
        "{device}: live memory is highest at the start of the history: the actual peak may be higher",
        _RECORD_HISTORY,
    ),
    "snapshot_owner_unknown": GapText(
        GapKind.DEVICE_MEMORY,
        "tenants of {ratio:percent} of the peak",
        "{device}: no tag or rule identifies the owner of {before:bytes} allocated before the history, "
        "{during:bytes} allocated during the history",
        f"{_RECORD_HISTORY}, or tag memory: torch.cuda.memory._set_memory_metadata('zprof:activations')",
    ),
    "snapshot_owner_unknown_before": GapText(
        GapKind.DEVICE_MEMORY,
        "tenants of {ratio:percent} of the peak",
        "{device}: no tag or rule identifies the owner of {before:bytes} allocated before the history",
        f"{_RECORD_HISTORY}, or tag memory: torch.cuda.memory._set_memory_metadata('zprof:activations')",
    ),
    "snapshot_owner_unknown_during": GapText(
        GapKind.DEVICE_MEMORY,
        "tenants of {ratio:percent} of the peak",
        "{device}: no tag or rule identifies the owner of {during:bytes} allocated during the history",
        f"{_RECORD_HISTORY}, or tag memory: torch.cuda.memory._set_memory_metadata('zprof:activations')",
    ),
    "snapshot_without_segments": GapText(
        GapKind.DEVICE_MEMORY,
        "reserved memory",
        "{device}: the history has no segments",
        "dump the snapshot with a current torch",
    ),
    "blocks_exceed_segments": GapText(
        GapKind.DEVICE_MEMORY,
        "reserved memory",
        "{device}: at the {moment} the blocks exceed the segments of the snapshot ({segments:bytes}) by "
        "{excess:bytes}",
        _RECORD_FROM_START,
    ),
    "blocks_outside_segments": GapText(
        GapKind.DEVICE_MEMORY,
        "free memory within segments",
        "{device}: at the {moment} blocks of {size:bytes} are outside all segments or overlap, so free "
        "memory cannot be split",
        _RECORD_FROM_START,
    ),
    "blocks_below_request": GapText(
        GapKind.DEVICE_MEMORY,
        "rounding of blocks",
        "{device}: blocks are smaller than the requested sizes, by {size:bytes} in total",
        _REPORT_CONTRADICTION,
    ),
    "live_above_reserved": GapText(
        GapKind.DEVICE_MEMORY,
        "reserved memory",
        "{device}: live memory exceeds reserved memory, by {size:bytes}",
        _REPORT_CONTRADICTION,
    ),
    "history_disagrees": GapText(
        GapKind.DEVICE_MEMORY,
        "reserved memory",
        "{device}: at the {moment} the allocator's history differs from its events, by {size:bytes}",
        _REPORT_CONTRADICTION,
    ),
    "counters_disagree": GapText(
        GapKind.DEVICE_MEMORY,
        "reserved memory",
        "{device}: counters of a step boundary do not add up",
        _REPORT_CONTRADICTION,
    ),
    "history_not_recorded": GapText(
        GapKind.DEVICE_MEMORY,
        "breakdown of reserved memory",
        "{device}: no allocator history at the peak, only counters at step boundaries",
        "record a full memory window, and do not enable torch's memory history yourself",
    ),
    # Comparison and hangs.
    "baseline_gap": GapText(GapKind.BASELINE, "baseline: {what}", "{reason}", "{remedy}"),
    "run_without_steps": GapText(
        GapKind.TIMES_NOT_COMPARABLE,
        "comparison of times with the baseline",
        "no timed step in {runs:and}",
        "record a time window in both runs, or compare only memory: --only memory",
    ),
    "one_run_without_marks": GapText(
        GapKind.TIMES_NOT_COMPARABLE,
        "comparison of times with the baseline",
        "{unmarked} was measured as a single interval, {other} step by step",
        "mark the steps of both runs: profiler.step()",
    ),
    "intervals_unequal": GapText(
        GapKind.TIMES_NOT_COMPARABLE,
        "comparison of times with the baseline",
        "{baseline} is a single interval of {baseline_steps} {baseline_steps:plural step}, {run} of "
        "{run_steps} {run_steps:plural step}",
        "compare single steps: --window step",
    ),
    "single_interval": GapText(
        GapKind.NO_INTERVAL,
        "step time interval",
        "{run} was measured as a single interval; a confidence interval needs at least {min_steps} steps",
        "compare steps: --window step",
    ),
    "few_steps": GapText(
        GapKind.NO_INTERVAL,
        "step time interval",
        "{run} has {steps} timed {steps:plural step}; a confidence interval needs at least {min_steps} steps",
        "record more steps",
    ),
    "work_unknown": GapText(
        GapKind.UNEQUAL_WORK,
        "time at equal work",
        "the tokens per step of {runs:and} are unknown: a larger batch would look slower",
        "set it with --tokens-per-step, --baseline-tokens-per-step, or "
        "zprof.record(training=TrainingFacts(…))",
    ),
    "work_of_one_unknown": GapText(
        GapKind.UNEQUAL_WORK,
        "time at equal work",
        "the tokens per step of one of the runs are unknown: a larger batch would look slower",
        "set it with --tokens-per-step, --baseline-tokens-per-step, or "
        "zprof.record(training=TrainingFacts(…))",
    ),
    "hang_without_operation": GapText(
        GapKind.FILE, "ranks of the stuck group", "no line names an operation", "pass {evidence}"
    ),
    "hang_without_members": GapText(
        GapKind.FILE,
        "ranks of the stuck group",
        "no line states the members of the group, so that nobody can say who is missing",
        "pass {evidence}",
    ),
    "hang_without_lines": GapText(
        GapKind.FILE,
        "ranks of the stuck group",
        "the lines of {seen} of {members} members are there",
        "pass {evidence}",
    ),
}
