"""The texts of gaps of plans, predictions, replays and second opinions; see ``gap_texts``."""

from zprof.model.gaps import GapKind, GapText

_USE_SHAPE = "plan with --layers and --hidden instead of --model"
_RECORD_STEPS = "record a few steps: zprof record -o RUN -- CMD"
_RECORD_RANKS = "record steps of all ranks with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_RECORD_TIME = "record with the time window enabled"
_EXPLAIN_CHANGES = "zprof whatif --help describes each change"
_PASS_FACTS = "pass them to the recorder: zprof.record(..., training=zprof.TrainingFacts(...))"
TEXTS = {
    # Plans.
    "plan_without_shape": GapText(
        GapKind.PLAN,
        "planned {tenant}",
        "the model's layers are unknown",
        "give --layers and --hidden, or --preset, instead of --params",
    ),
    "plan_without_batch": GapText(
        GapKind.PLAN, "planned {tenant}", "the batch is unknown", "give --micro-batch and --sequence"
    ),
    "plan_without_unit_bytes": GapText(
        GapKind.PLAN,
        "planned {tenant}",
        "the memory that the model's units save and need is unknown",
        "use a forward that takes int64 tokens [samples, sequence], or plan with --layers and --hidden "
        "instead of --model",
    ),
    "plan_without_split": GapText(
        GapKind.PLAN,
        "planned {tenant}",
        "how model-parallel ranks split the memory of a counted model is unknown",
        _USE_SHAPE,
    ),
    "plan_of_experts": GapText(
        GapKind.PLAN,
        "expert parallelism",
        "all {experts} experts of a block are planned as data parallel: each rank computes its own tokens "
        "with all experts, and every token finds its expert (none is dropped)",
        "add the all-to-all of tokens and divide the experts' states by the expert ranks yourself",
    ),
    "plan_of_one_unit": GapText(
        GapKind.PLAN,
        "units of the model: only one, its root",
        "it has no nn.ModuleList of blocks: ZeRO-3 gathers the entire model at once, and GPipe and PipeDream "
        "have no layers to divide, so they are omitted",
        f"put the blocks in an nn.ModuleList, or {_USE_SHAPE}",
    ),
    "plan_without_fp32_peak": GapText(
        GapKind.PLAN,
        "step times",
        "the fp32 peak of {hardware} is unknown; only its 16-bit peak is",
        "set peak_fp32_tflops in the hardware file, or plan with --precision bf16",
    ),
    "plan_without_precision_peak": GapText(
        GapKind.PLAN,
        "step times",
        "the {precision} peak of {hardware} is unknown; its 16-bit peak is used",
        "set peak_fp8_tflops or peak_fp4_tflops in the hardware file",
    ),
    "layouts_without_parameters": GapText(
        GapKind.PLAN,
        "other layouts",
        "the run has no number of parameters",
        "record with training facts: zprof.record(..., training=TrainingFacts(parameters=...))",
    ),
    "plan_without_tensor_sizes": GapText(
        GapKind.PLAN,
        "times of {schemes}",
        "for a counted model, the size of the tensors between its ranks is unknown",
        _USE_SHAPE,
    ),
    # Verified plans.
    "stage_failed": GapText(
        GapKind.PLAN, "stage {stage} was not verified", "{reason}", "verify it alone with --stage {stage}"
    ),
    "stage_not_reached": GapText(
        GapKind.PLAN,
        "stage {stage} was not verified",
        "the process exited before this stage",
        "verify it alone with --stage {stage}",
    ),
    "workspaces_not_verified": GapText(
        GapKind.PLAN,
        "kernel workspaces and communicator memory are not verified",
        "fake tensors have no allocator, no workspaces and no collectives in flight; attention runs the CPU "
        "kernel, which saves the same tensors as flash attention",
        _RECORD_STEPS,
    ),
    "loss_not_verified": GapText(
        GapKind.PLAN,
        "memory saved by the loss is not verified",
        "--model returns a model without its loss; the sum of its first output was used instead",
        "let the model return its loss",
    ),
    "gloo_copies_not_verified": GapText(
        GapKind.PLAN,
        "gloo's internal copies are not verified",
        "a fake process group makes no copies; the plan counts them as communication buffers",
        "record a few steps of zprof train",
    ),
    "host_checkpoints_not_verified": GapText(
        GapKind.PLAN,
        "checkpoints in host memory are not verified",
        "with fake tensors, host and device cannot be told apart: they are counted on the device",
        "record a few steps of zprof train --pa-cpu",
    ),
    # Predictions.
    "prediction_failed": GapText(GapKind.PREDICTION, "prediction", "{error}", "{hint}"),
    "model_inexact": GapText(
        GapKind.PREDICTION,
        "step of a changed run",
        "the model of the run differs from the measured step by {error:.0%} (more than {limit:.0%}): ranges "
        "are twice as wide",
        "record more steps on an otherwise idle machine",
    ),
    "link_of_one_size": GapText(
        GapKind.PREDICTION,
        "latency and bandwidth of the link",
        "messages of each kind have only one size: predictions for another link assume anything between "
        "bandwidth-bound and latency-bound",
        "record with units of different sizes",
    ),
    "peak_without_memory": GapText(
        GapKind.PREDICTION,
        "peak of a changed run",
        "no memory was recorded",
        "record with the memory window on",
    ),
    "peak_without_facts": GapText(
        GapKind.PREDICTION,
        "peak of a changed run",
        "the run does not report its stage, its parameters or the bytes of its states",
        _PASS_FACTS,
    ),
    "model_of_one_rank": GapText(
        GapKind.PREDICTION,
        "step of a changed run",
        "a single rank has no communication",
        "record a run with at least two ranks",
    ),
    "model_without_step": GapText(
        GapKind.PREDICTION, "step of a changed run", "no timed step was recorded", _RECORD_TIME
    ),
    "model_without_messages": GapText(
        GapKind.PREDICTION, "step of a changed run", "no gather or reduction was recorded", _RECORD_TIME
    ),
    "model_without_common_step": GapText(
        GapKind.PREDICTION,
        "step of a changed run",
        "no step with gathers or reductions was recorded by all ranks",
        "record the same steps on all ranks: profiler.step()",
    ),
    "model_without_reductions": GapText(
        GapKind.PREDICTION,
        "step of a changed run",
        "no gradient reduction was recorded",
        "record complete steps, including the backward",
    ),
    "model_without_matches": GapText(
        GapKind.PREDICTION,
        "step of a changed run",
        "no message was matched across ranks",
        "record all ranks of a process group",
    ),
    "gather_overlap_unknown": GapText(
        GapKind.PREDICTION,
        "overlap of the parameter gather in stages 1 and 2",
        "this run has no gather after its update: the range extends from hidden under the next forward to "
        "fully exposed",
        "set it with --overlap-gather on or off",
    ),
    "link_latency_unknown": GapText(
        GapKind.PREDICTION,
        "share of the latency due to the link",
        "the fitted latency is the entire cost of a message apart from its bytes, including software and "
        "threads: the range extends from not scaled to the full time of the smallest message",
        "record a run on such a link, or with smaller units",
    ),
    "no_effect_without_update_gather": GapText(
        GapKind.PREDICTION,
        "{change}: effect on the step",
        "only stages 1 and 2 gather new parameters after the update, not stage {stage}",
        _EXPLAIN_CHANGES,
    ),
    "no_effect_without_unit_gathers": GapText(
        GapKind.PREDICTION,
        "{change}: effect on the step",
        "only stage 3 gathers units for their passes, not stage {stage}",
        _EXPLAIN_CHANGES,
    ),
    "no_effect_without_element_size": GapText(
        GapKind.PREDICTION,
        "{change}: effect on the step",
        "the run does not record the element size of its reductions",
        _EXPLAIN_CHANGES,
    ),
    "no_effect_beyond_units": GapText(
        GapKind.PREDICTION,
        "{change}: effect on the step",
        "the run has {units} units: all of them are merged into one",
        _EXPLAIN_CHANGES,
    ),
    "no_effect_of_same_setting": GapText(
        GapKind.PREDICTION,
        "{change}: effect on the step",
        "the run already has this setting",
        _EXPLAIN_CHANGES,
    ),
    # Replays.
    "replay_without_recording": GapText(
        GapKind.REPLAY, "replay of the step", "the recording is not available", _RECORD_RANKS
    ),
    "replay_on_cpu": GapText(
        GapKind.REPLAY, "replay of the step", "the ranks compute on the CPU", _RECORD_RANKS
    ),
    "replay_without_common_step": GapText(
        GapKind.REPLAY, "replay of the step", "no step was recorded by all ranks", _RECORD_RANKS
    ),
    "replay_without_timed_step": GapText(
        GapKind.REPLAY, "replay of the step", "no rank has a timed step", _RECORD_RANKS
    ),
    "replay_too_large": GapText(
        GapKind.REPLAY, "replay of the step", "a step has more than {limit:,} calls", _RECORD_RANKS
    ),
    "replay_without_launches": GapText(
        GapKind.REPLAY,
        "replay of the step",
        "{ratio:.0%} of the work of rank {played} has no recorded launch",
        _RECORD_RANKS,
    ),
    "replay_without_host_calls": GapText(
        GapKind.REPLAY,
        "replay of the step",
        "rank {played} has no host call within its steps",
        _RECORD_RANKS,
    ),
    # Second opinions.
    "hta_failed": GapText(
        GapKind.SECOND_OPINION,
        "HTA ({questions:list})",
        "HTA failed: {error}",
        "zprof's own results do not depend on it; HTA needs complete JSON files with GPU work",
    ),
    "hta_without_trace": GapText(
        GapKind.SECOND_OPINION,
        "HTA",
        "HTA reads traces, and a run does not contain them",
        "zprof report TRACE --hta, with the trace or folder of traces instead of the run",
    ),
    "hta_without_device_work": GapText(
        GapKind.SECOND_OPINION,
        "HTA",
        "HTA only analyzes device work, and the trace of this rank contains none",
        "record with ProfilerActivity.CUDA, on a rank with a GPU",
    ),
    # Causes.
    "cause_not_tested": GapText(
        GapKind.UNTESTED_RULE, "rule {causes:list} not tested", "{reason}", "{remedy}"
    ),
    "causes_not_tested": GapText(
        GapKind.UNTESTED_RULE, "rules {causes:list} not tested", "{reason}", "{remedy}"
    ),
}
