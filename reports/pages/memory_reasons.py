"""Say why memory of a snapshot belongs to a tenant: one sentence per rule of the attribution."""

from collections.abc import Mapping

_REASONS: Mapping[str, str] = {
    "tag": "the program tagged it",
    "library_workspace": "the workspace of a math library, by its frames",
    "cublas_workspace": "as large as the workspace of cuBLAS, and kept",
    "sharding_gather": "allocated to gather sharded parameters",
    "sharding_reduced_shard": "a reduced shard that lives until the optimizer",
    "sharding_reduce": "allocated to reduce gradients",
    "ddp_bucket": "a bucket of DistributedDataParallel",
    "collective": "allocated by a collective",
    "optimizer_init": "allocated where the optimizer initializes its state",
    "optimizer_long_lived": "allocated by the optimizer, and live in the next forward",
    "optimizer_from_before": "allocated by the optimizer before the history, and never freed",
    "optimizer_temporary": "allocated by the optimizer, and freed before the next forward",
    "clip_or_scale": "allocated to clip or scale gradients",
    "sharding_parameter": "allocated to shard parameters, and never freed",
    "module_setup": "allocated to set up a module, and never freed",
    "constructor": "allocated in a constructor, and never freed",
    "recomputed": "recomputed in the backward",
    "recomputed_at_the_end": "recomputed in the backward in which the history ends",
    "recompute_temporary": "freed while activations were recomputed",
    "backward_until_optimizer": "allocated in the backward, and live in the optimizer",
    "backward_outlived": "allocated in the backward, and live after it",
    "backward_temporary": "allocated and freed in the backward",
    "forward_until_backward": "allocated in the forward, and freed in the backward",
    "forward_name_until_backward": "allocated in a function named forward, and freed in the backward",
    "forward_in_running_backward": "from the forward, and live in the backward in which the history ends",
    "forward_output_kept": "allocated in the forward, and live after the backward",
    "forward_temporary": "allocated and freed in the forward",
    "forward_at_the_end": "allocated in the forward in which the history ends",
    "autocast_saved": "copied by autocast in the forward, and freed in the backward",
    "autocast": "copied by autocast, and freed without a backward",
    "saved_before": "older than the history, and freed in its first backward",
    "temporary_before": "older than the history, and freed in its first forward",
    "forward_keeps": "kept to the end of a forward that no backward follows",
    "forward_only_temporary": "allocated and freed in a forward that no backward follows",
    "forward_only_kept": "allocated in a forward that no backward follows, and never freed",
    "optimizer_at_the_end": "allocated by the optimizer in which the history ends",
    "replaces_parameter": "allocated by the optimizer in place of a parameter that it freed",
    "sizes_repeat_gradients": "sizes repeat those of the gradients",
    "sizes_repeat_parameters": "sizes repeat those of the parameters",
    "sums_to_gradients": "together as large as all gradients",
    "buckets_without_gradients": "buckets of DistributedDataParallel, and no gradients beside them",
    "lasts_in_one_set": "older than the history, never freed, and sizes that repeat like layers",
    "lasts_in_copies": "older than the history, never freed, and each size in equal copies",
    "lasts_without_gradient": "older than the history, never freed, and without gradients",
    "size_of_a_workspace": "as large as a workspace of cuBLAS, and kept",
}


def describe_reason(reason: str) -> str:
    """Return the sentence of a rule without a full stop; of an unknown rule its name, in words."""
    return _REASONS.get(reason) or reason.replace("_", " ")
