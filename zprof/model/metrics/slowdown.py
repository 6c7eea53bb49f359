"""Explain the metrics of the slowdown of a pipeline."""

from zprof.model.quantities import Better, Metric

_PATH = "time.slowdown"
SLOWDOWN = (
    Metric(
        path=f"{_PATH}.s",
        title="slowdown S",
        help="How much longer the steps take than if all operations of a type took the same time: the mean "
        "of the type for computations, the median for transfers.",
        formula="replayed step / ideal step, means over the steps",
        inputs=("replayed_step_ns", "ideal_step_ns"),
        better=Better.LESS,
        has_interval=False,
    ),
    Metric(
        path=f"{_PATH}.m_s",
        title="M_S",
        help="Share of the lost time that is gained if the operations of the last stage are ideal. Below 0 "
        "if that costs time, above 1 if it gains more than was lost.",
        formula="(replayed step - step with an ideal last stage) / (replayed step - ideal step)",
        inputs=("replayed_step_ns", "ideal_step_ns"),
        has_interval=False,
    ),
    Metric(
        path=f"{_PATH}.m_w",
        title="M_W",
        help="Share of the lost time that is gained if the operations of the slowest 3 % of the workers are "
        "ideal, at least of one.",
        formula="(replayed step - step with ideal slowest workers) / (replayed step - ideal step)",
        inputs=("replayed_step_ns", "ideal_step_ns"),
        has_interval=False,
    ),
    Metric(
        path=f"{_PATH}.recorded_step_ns",
        title="recorded step",
        help="Mean length of a recorded step, from its first start to its last end.",
        inputs=("replayed_step_ns",),
        better=Better.LESS,
        has_interval=False,
    ),
    Metric(
        path=f"{_PATH}.replayed_step_ns",
        title="replayed step",
        help="Mean length of a step that is replayed with its recorded durations, without delays between "
        "operations that wait for nothing.",
        inputs=("recorded_step_ns",),
        better=Better.LESS,
        has_interval=False,
    ),
    Metric(
        path=f"{_PATH}.ideal_step_ns",
        title="ideal step",
        help="Length of a step in which all operations of a type take the same time.",
        inputs=("replayed_step_ns",),
        better=Better.LESS,
        has_interval=False,
    ),
)
