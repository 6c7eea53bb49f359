"""The slowdown of a pipeline: what share of the lost time each part explains."""

from collections.abc import Iterable, Sequence
from typing import Any

from zprof.base.formatting import format_ms, format_percent
from zprof.model.slowdown import Slowdown, SlowdownCause
from zprof.model.time import Time
from zprof.reports.page import HeatCell, HeatMap, KeyFigures, Paragraph, Section, make_section
from zprof.reports.pages.ranks import LEVELS, MAX_HEAT_COLUMNS, MAX_HEAT_ROWS, split_evenly
from zprof.reports.table import (
    UNKNOWN,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_ROWS = 8
#: Slowdowns of the lightest and the darkest colour, as published: below 1, a part costs nothing.
_LOW, _HIGH = 1.0, 1.5
_CAUSES = {
    SlowdownCause.NONE: "The steps are close to ideal.",
    SlowdownCause.LAST_STAGE: "Stage imbalance: the last stage has more work than the others, often the "
    "output layer and the loss. Give it fewer layers (Megatron: --decoder-last-pipeline-num-layers), or a "
    "pipeline stage of its own.",
    SlowdownCause.SLOW_WORKERS: "Slow workers: the same operations take longer on a few workers. Compare "
    "clocks, power and temperature of their devices with a healthy one, and the processes on their hosts.",
    SlowdownCause.OPERATION: "The lost time is spread over many workers: micro-batches of different cost, "
    "such as sequences of different length, or communication that varies.",
}


def build_slowdown_section(time: Time) -> tuple[Section, ...]:
    """Build the section; empty without a pipeline. Without times of ranks it names the cause."""
    slowdown = time.slowdown
    if slowdown is None:
        return ()
    m_s, m_w = (UNKNOWN if each is None else f"{each:.3f}" for each in (slowdown.m_s, slowdown.m_w))
    slowest = ", ".join(map(str, slowdown.slowest_ranks[:_MAX_TEXT_ROWS]))
    last = max(slowdown.by_stage)
    figures = (
        ("slowdown S", f"{slowdown.s:.3f}", "replayed step / ideal step"),
        ("M_S", m_s, f"share of the lost time that an ideal last stage ({last}) gains"),
        ("M_W", m_w, f"share that the slowest 3 % of the workers gain, if ideal (rank {slowest})"),
    )
    steps_ms = (
        f"{name} {format_ms(each)} ms"
        for name, each in (
            ("recorded", slowdown.recorded_step_ns),
            ("replayed", slowdown.replayed_step_ns),
            ("ideal", slowdown.ideal_step_ns),
        )
    )
    return make_section(
        "slowdown",
        "Slowdown",
        "What a step loses against one in which all operations of a type take the same time.",
        KeyFigures(figures=figures),
        None if time.per_rank else Paragraph(text=_CAUSES[slowdown.cause]),
        _build_part_table(
            slowdown, "By operation", make_name_column("operation"), slowdown.by_operation.items()
        ),
        _build_worker_table(slowdown),
        build_worker_map(slowdown),
        note=f"step: {', '.join(steps_ms)}; mean of {slowdown.steps} steps",
    )


def _build_part_table(
    slowdown: Slowdown, title: str, column: Any, parts: Iterable[tuple[str, float]]
) -> Table | None:
    return make_table(
        title,
        (column, *make_number_columns("slowdown"), *make_number_columns("share", unit="%")),
        [(name, f"{value:.3f}", _format_share(slowdown, value)) for name, value in parts],
        note="slowdown if only this type keeps its own durations; its share of the lost time alone",
        max_text_rows=_MAX_TEXT_ROWS,
        noun="types of operations, largest slowdown first",
    )


def _build_worker_table(slowdown: Slowdown) -> Table | None:
    ordered = sorted(slowdown.workers, key=lambda each: (-slowdown.by_worker[each.rank], each.rank))
    return make_table(
        "By worker",
        (
            *(make_text_column(name) for name in ("rank", "dp_rank", "stage")),
            *make_number_columns("slowdown"),
            *make_number_columns("share", unit="%"),
        ),
        [
            (
                str(each.rank),
                str(each.dp_rank),
                str(each.stage),
                f"{slowdown.by_worker[each.rank]:.3f}",
                _format_share(slowdown, slowdown.by_worker[each.rank]),
            )
            for each in ordered
        ],
        note="the smaller of the slowdowns of its replica and its stage",
        max_text_rows=_MAX_TEXT_ROWS,
        noun="workers, largest slowdown first",
    )


def _format_share(slowdown: Slowdown, value: float) -> str:
    share = slowdown.share(value)
    return UNKNOWN if share is None else format_percent(share)


def build_worker_map(slowdown: Slowdown) -> HeatMap:
    """Build the map of the slowdown of each worker, replicas x stages; a cell of several has the largest."""
    by_place = {(each.dp_rank, each.stage): slowdown.by_worker[each.rank] for each in slowdown.workers}
    replicas = split_evenly(sorted(slowdown.by_dp_rank), MAX_HEAT_ROWS)
    stages = split_evenly(sorted(slowdown.by_stage), MAX_HEAT_COLUMNS)

    def cell(value: float) -> HeatCell:
        level = int(LEVELS * (value - _LOW) / (_HIGH - _LOW))
        return HeatCell(text=f"{value:.2f}", level=min(LEVELS - 1, max(0, level)))

    return HeatMap(
        title="Slowdown by worker",
        unit="",
        corner="stage",
        columns=tuple(map(_format_range, stages)),
        rows=tuple(
            (
                f"dp_rank {_format_range(replicas_in)}",
                tuple(
                    cell(max(by_place[replica, stage] for replica in replicas_in for stage in stages_in))
                    for stages_in in stages
                ),
            )
            for replicas_in in replicas
        ),
        scale=tuple(
            HeatCell(text=f"{_LOW + (_HIGH - _LOW) * level / LEVELS:.2f}", level=level)
            for level in range(LEVELS)
        ),
        notes=("The smaller of the slowdowns of its replica and its stage.",),
        in_text=True,
    )


def _format_range(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"
