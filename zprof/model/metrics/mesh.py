"""Explain the metrics of a mesh: messages of each kind of parallelism, and the bubble of a pipeline."""

from zprof.model.quantities import Better, Metric

_ROLES, _BUBBLE = "time.mesh.roles[]", "time.mesh.bubble"
_PER_STEP = "Mean per step over the ranks of the role's groups."
MESH = (
    Metric(path=f"{_ROLES}.size", title="ranks of a group", help="Ranks of the role's largest group."),
    Metric(path=f"{_ROLES}.groups", title="groups", help="Process groups with this role."),
    Metric(
        path=f"{_ROLES}.messages",
        title="messages",
        help=f"Collectives, sends and receives of the role. {_PER_STEP}",
        inputs=("bytes",),
    ),
    Metric(
        path=f"{_ROLES}.bytes",
        title="bytes",
        help=f"Bytes of the role's messages, each as the full tensor. {_PER_STEP}",
        inputs=("messages",),
        better=Better.LESS,
    ),
    Metric(
        path=f"{_ROLES}.exposed_wait_ns",
        title="exposed wait",
        help="Time in the role's messages before the last rank has arrived, without concurrent compute. "
        f"{_PER_STEP} Roles may overlap, so they do not add up to the ledger's term.",
        inputs=("exposed_transfer_ns",),
        better=Better.LESS,
    ),
    Metric(
        path=f"{_ROLES}.exposed_transfer_ns",
        title="exposed transfer",
        help="Time in the role's messages after the last rank has arrived, without concurrent compute. "
        f"{_PER_STEP} Roles may overlap, so they do not add up to the ledger's term.",
        inputs=("exposed_wait_ns",),
        better=Better.LESS,
    ),
    Metric(path=f"{_BUBBLE}.stages", title="stages", help="Ranks of a pipeline."),
    Metric(
        path=f"{_BUBBLE}.micro_batches",
        title="micro-batches",
        help="Micro-batches of a step, counted by the messages from the first stage to the second.",
    ),
    Metric(
        path=f"{_BUBBLE}.virtual",
        title="model chunks per rank",
        help="Chunks of the model on each rank: more than one with an interleaved schedule.",
    ),
    *(
        Metric(
            path=f"{_BUBBLE}.{name}",
            title=title,
            help=f"{help} Mean per step over the ranks of the pipelines.",
            inputs=("share_ratio",),
            better=Better.LESS,
        )
        for name, title, help in (
            ("warm_up_ns", "warm-up", "Wait of a stage for its first micro-batch."),
            ("steady_ns", "steady", "Waits for other stages between a rank's first and last compute."),
            ("drain_ns", "drain", "Wait of a stage that has finished for the last one."),
        )
    ),
    Metric(
        path=f"{_BUBBLE}.share_ratio",
        title="bubble",
        help="Share of the step in which a rank waits for other stages.",
        formula="(warm-up + steady + drain) / step",
        inputs=("ideal_ratio",),
        better=Better.LESS,
    ),
    Metric(
        path=f"{_BUBBLE}.ideal_ratio",
        title="bubble of equal stages",
        help="Bubble of the schedule with p equal stages, m micro-batches and v chunks per rank.",
        formula="(p - 1) / (m v + p - 1)",
        inputs=("share_ratio", "stages", "micro_batches", "virtual"),
    ),
)
