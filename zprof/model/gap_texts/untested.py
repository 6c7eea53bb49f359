"""Why causes could not be tested, and what to record instead; see ``zprof.analysis.analysis``."""

from collections.abc import Mapping

_FIND_LINE = "py-spy record --idle --native -- python train.py shows which line of the program that is"
#: Reason and remedy by key; both are templates, see ``gap_texts.fill_text``.
UNTESTED_TEXTS: Mapping[str, tuple[str, str]] = {
    "allocator_not_sampled": (
        "the GPU's allocator and driver were not sampled at the peak",
        "record on the GPU machine with the memory window on: zprof.steps(memory=2)",
    ),
    "computing_unit_unknown": (
        "the unit computing when a gather was launched is unknown: no launches, or no FSDP ranges",
        "record the host too (ProfilerActivity.CPU); FSDP marks its passes automatically",
    ),
    "few_common_kernels": (
        "less than half of the compute is in kernels that both runs have",
        "compare with a run of the same model, compiled the same way",
    ),
    "gathered_type_unknown": (
        "parameters are gathered in float32, and the type in which the model computes is unknown",
        "record on a device, whose kernel names contain types; without autocast there is nothing to save",
    ),
    "gathered_unit_unknown": (
        "the recording does not show which unit an all_gather belongs to",
        "profile with the ranges of FSDP2 or of zprof",
    ),
    "host_calls_not_recorded": (
        "the host's calls were not recorded",
        "record CPU activity too (ProfilerActivity.CPU)",
    ),
    "hosts_unknown": (
        "the ranks' hosts or the groups' ranks are unknown",
        "record with zprof, or with a torch version whose traces contain hosts and groups",
    ),
    "idle_rank_unknown": (
        "a rank is idle while others wait for it, and it is unknown if its host is slower than theirs",
        "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on all ranks",
    ),
    "init_not_recorded": (
        "the memory before the first step was not recorded",
        "start the program with zprof in full mode: zprof record -o RUN -- python train.py",
    ),
    "kernel_counts_differ": (
        "the runs launch different numbers of kernels per step, and the work per step was not recorded",
        "pass it when recording: --tokens-per-step",
    ),
    "last_rank_unknown": (
        "ranks are missing, so the rank that arrived last is unknown",
        "record or import all ranks",
    ),
    "latency_unknown": (
        "all messages of a kind have one size, so their latency is unknown",
        "record a step that also reduces a scalar (the gradient norm, the loss)",
    ),
    "launches_not_shown": (
        "the trace does not show when the host launched its kernels",
        "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    ),
    "no_collective_matched": (
        "no collective was matched on all of its ranks, so how long its bytes take is unknown",
        "record all ranks in the same steps",
    ),
    "no_collective_recorded": (
        "no collective was recorded",
        "record the time window",
    ),
    "no_complete_step": (
        "no complete step was recorded",
        "record two steps: zprof.steps(memory=2)",
    ),
    "no_data_loader": (
        "the trace contains no data loader",
        'iterate over a torch DataLoader, or fetch in record_function("enumerate(DataLoader)#mine.__next__")',
    ),
    "no_forward": (
        "no forward was identified: the recorder was not given the model, or the entire model is compiled",
        "record with model=model, and once without torch.compile",
    ),
    "no_operator": (
        "no operator of the main thread was recorded",
        "record with activities=[ProfilerActivity.CPU]",
    ),
    "no_timed_step": (
        "no step was timed",
        "record with the time window on",
    ),
    "no_waits_recorded": (
        "no waits for collectives were recorded, so it is unknown if all_gathers are exposed",
        "write ::wait ranges (docs/recording.md)",
    ),
    "padding_unknown": (
        "kernels that can pad take time, and the number of parameters is unknown",
        "pass it (report --parameters N), or pass a baseline of the same model",
    ),
    "passes_unknown": (
        "the recording does not show where forwards and backwards start",
        "profile CPU activities too: ProfilerActivity.CPU",
    ),
    "reduced_type_unknown": (
        "gradients are reduced in float32, and the type in which the model computes is unknown",
        "record on a device, whose kernel names contain types, or pass the types: TrainingFacts(…)",
    ),
    "sharding_unknown": (
        "the sharding stage, its ranks, the number of parameters or their bytes are unknown",
        "pass the recorder the model, or the facts: zprof.record(training=TrainingFacts(...))",
    ),
    "sizes_unknown": (
        "the recording does not say how many bytes the collectives move",
        "pass a baseline on the same link, or record with torch 2.2 or newer",
    ),
    "too_few_kernels_alone": (
        "too few kernels did the same work both alone and during a collective",
        "record more steps, or one step without overlap",
    ),
    "single_occurrence": (
        "the window has one step, and {lost:ns} of its idle time is a single occurrence{what}; it is "
        "unknown if it recurs in each step",
        "record at least three steps",
    ),
    "hosts_not_recorded": (
        "the hosts' activity was not recorded",
        "record with zprof, or profile the CPU too",
    ),
    "host_not_seen": (
        "the device has no work for {unseen:ns} of each step ({share:.0%}) while the recording shows "
        "nothing of the host: it may run Python, sleep, or wait for a lock or a file",
        _FIND_LINE,
    ),
    "host_not_seen_at_line": (
        "the device has no work for {unseen:ns} of each step ({share:.0%}) while the recording shows "
        "nothing of the host: {at_line:.0%} of that time it is at {place}",
        "{remedy}",
    ),
    "thread_not_timed": (
        "the training loop's thread runs no operator for {between:ns} of each step ({share:.0%}): it may "
        "run Python, sleep, or wait for a lock or a file",
        "record with zprof record, which samples the processor time of that thread",
    ),
    "thread_ran_elsewhere": (
        "the training loop's thread runs no operator for {between:ns} of each step ({share:.0%}), in "
        "which it surely used its processor for only {ran:ns}: it may run Python, sleep, or wait for a "
        "lock or a file",
        _FIND_LINE,
    ),
    "thread_ran_elsewhere_at_line": (
        "the training loop's thread runs no operator for {between:ns} of each step ({share:.0%}), in "
        "which it surely used its processor for only {ran:ns}: {at_line:.0%} of that time it is at "
        "{place}",
        "{remedy}",
    ),
    "thread_may_not_have_run": (
        "the training loop's thread runs no operator for {between:ns} of each step ({share:.0%}), in "
        "which it need not have used its processor at all: it may run Python, sleep, or wait for a lock "
        "or a file",
        _FIND_LINE,
    ),
    "thread_may_not_have_run_at_line": (
        "the training loop's thread runs no operator for {between:ns} of each step ({share:.0%}), in "
        "which it need not have used its processor at all: {at_line:.0%} of that time it is at {place}",
        "{remedy}",
    ),
    "thread_waited_and_ran": (
        "the processors were busy, and the training loop's thread waited for one for {queued:ns} "
        "({queued_share:.0%}) of each step; it runs no operator for {between:ns} of each step "
        "({share:.0%}), in which it surely used its processor for only {ran:ns}: it may run Python, "
        "sleep, or wait for a lock or a file",
        "record while nothing else uses the processors, or with fewer ranks on them",
    ),
    "thread_waited": (
        "the processors were busy, and the training loop's thread waited for one for {queued:ns} "
        "({queued_share:.0%}) of each step; it runs no operator for {between:ns} of each step "
        "({share:.0%}), in which it need not have used its processor at all: it may run Python, sleep, or"
        " wait for a lock or a file",
        "record while nothing else uses the processors, or with fewer ranks on them",
    ),
    "late_by_chance": (
        "rank {rank} is {delay:ns} late in the median step, which over {steps} steps may be chance",
        "record more steps",
    ),
    "late_part_by_chance": (
        "rank {rank} is by {part} alone {delay:ns} late in the median step, which over {steps} steps may "
        "be chance",
        "record more steps",
    ),
    "steps_differ": (
        "steps differ so much that a rank late by less than {unseen:ns} would not be visible",
        "record more steps, or on a quieter machine",
    ),
    "few_matched_steps": (
        "collectives of all ranks were matched in only {steps} steps, but {needed} are needed",
        "record more steps",
    ),
    "delay_passed_on": (
        "rank {rank} is late because of another rank, which could hardly be compared with others",
        "record again, and check which collectives were not matched",
    ),
    "bandwidth_unknown": (
        "the expected bandwidth is unknown: {messages} reach {reached:rate}, and neither a baseline nor a"
        " faster group tells what the link should give",
        "pass a baseline on the same link, or --expected-busbw GB_PER_S",
    ),
    "bandwidth_of_groups_unknown": (
        "the expected bandwidth is unknown: {messages} reach {reached:rate}, the fastest group of this "
        "job {fastest:rate}, and neither a baseline nor a faster group tells what the link should give",
        "pass a baseline on the same link, or --expected-busbw GB_PER_S",
    ),
    "network_unknown": (
        "{messages} cross hosts and reach {reached:rate}, the fastest link of this job reaches "
        "{fastest:rate}, and what the network should give is unknown ({exposed:ns} exposed {basis})",
        "measure the network between these hosts (nccl-tests) and pass --expected-busbw GB_PER_S, or a "
        "baseline on the same link",
    ),
    "no_baseline": (
        "no baseline",
        "pass a run of the same model on the same devices: --baseline",
    ),
    "baseline_without_kernels": (
        "the baseline has no kernels",
        "pass a run of the same model on the same devices: --baseline",
    ),
}
