"""Plan a job before it runs, with the options of ``zprof plan`` as arguments, and display the plan."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import convert
from msgspec.structs import fields

from zprof.base.errors import BadInput
from zprof.integrations.planning import count_model
from zprof.model.cursor import Cursor
from zprof.model.plan import Plan
from zprof.notebook.display import Displayed
from zprof.planner.request import CHOICES, PARSERS, PlanRequest

if TYPE_CHECKING:
    from zprof.reports.formats import Format
    from zprof.reports.page import Page

_DEFAULTS = PlanRequest()
_OPTION = re.compile(r"--([a-z][a-z-]*)")


class PlannedJob(Displayed, Plan, frozen=True):
    """A plan with notebook display; a subclass without new fields, like :class:`DiagnosedRun`."""

    def _list_formats(self, *, short: bool) -> "Sequence[Format[Any]]":
        from zprof.reports.formats import PLANS, PLANS_IN_FULL

        return PLANS if short else PLANS_IN_FULL

    def _build_short_page(self) -> "Page":
        from zprof.reports.pages.plan import build_plan_page

        return build_plan_page(self)

    def _list_lines(self) -> Iterator[str]:
        from zprof.reports.pages.plan import format_plan_title, list_plan_answers
        from zprof.reports.pages.plan_tables import choose_memory_scale, mark_assumed, read_known_peak

        yield f"{format_plan_title(self)}: {list_plan_answers(self)[0]}"
        scale = choose_memory_scale(self)
        for place, row in zip(Cursor(self).rows, self.rows, strict=True):
            size = f"{read_known_peak(place, scale).text} {scale.unit}"
            fits = "fits, tight" if row.tight else {True: "fits", False: "does not fit", None: ""}[row.fits]
            fits = f", {mark_assumed(fits, 'fits' in row.assumed)}" if fits else ""
            yield f"  {row.name}: {size} per device{fits}"


def plan(
    params: float | str | None = None,
    *,
    preset: str | None = None,
    model: str | None = None,
    config: str | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    vocabulary: int | None = None,
    context: int | None = None,
    untied: bool = False,
    framework: str | None = None,
    deepspeed: str | None = None,
    stage: int | None = None,
    world: int | None = None,
    dp: int = 1,
    tp: int = 1,
    mp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    virtual: int = 1,
    schedule: str | None = None,
    shard: int | None = None,
    no_reshard: bool = False,
    no_sequence_parallel: bool = False,
    precision: str = "bf16",
    pure: bool = False,
    fp32_reduce: bool = False,
    optimizer: str = "adam",
    offload: str | None = None,
    micro_batch: int | None = None,
    sequence: int | None = None,
    micro_batches: int = 1,
    global_batch: int | None = None,
    recompute: str = "none",
    unfused: str | None = None,
    compile: bool = False,
    checkpointing: bool = False,
    partition_activations: bool = False,
    offload_activations: bool = False,
    defragment: bool = False,
    keep_last: bool = False,
    constant_buffers: float | str | None = None,
    prefetch: int = 1,
    backend: str = "nccl",
    hardware: str | None = None,
    device_memory: float | str | None = None,
    bandwidth: float | str | None = None,
    latency: float | str | None = None,
    intra_bandwidth: float | str | None = None,
    intra_latency: float | str | None = None,
    search: bool = False,
    sensitivity: bool = False,
) -> PlannedJob:
    """Predict, before a job runs, whether it fits in memory and what its communication costs.

    Arguments are the options of ``zprof plan`` with the same names; see ``zprof plan --help``. Give the model
    in exactly one way: ``params``, ``preset``, ``config``, ``model``, or ``layers`` and ``hidden``. A missing
    shape, batch or hardware gets typical values, and figures that rest on them are marked ``~`` (listed in
    ``job.assumed`` and the ``assumed`` of a row). Quantities are numbers (bytes, bytes per second,
    nanoseconds) or strings with a unit such as ``"32GB"``.

    Raises:
        BadInput: The job is impossible, or an argument is invalid.
    """
    given = dict(locals())
    analyses = [name for name in ("search", "sensitivity") if given.pop(name)]
    from zprof.planner.plan_request import plan_request

    try:
        made = plan_request(_read_request(given), count_model, analyses=analyses)
    except BadInput as error:
        raise BadInput(_name_arguments(error.message), hint=_name_arguments(error.hint)) from None
    return PlannedJob(**{field.name: getattr(made, field.name) for field in fields(Plan)})


def _read_request(arguments: Mapping[str, object]) -> PlanRequest:
    """Parse the arguments like command-line options; None: the default."""
    read = {}
    for name, value in arguments.items():
        try:
            if value is not None:
                read[name] = _read_argument(name, value)
        except BadInput as error:
            raise BadInput(f"{name}: {error.message}", hint="see help(zprof.plan)") from None
    return convert(read, PlanRequest)


def _read_argument(name: str, value: object) -> object:
    if name in CHOICES:
        choices = {str(choice): choice for choice in CHOICES[name]}
        if str(value) not in choices:
            raise BadInput(f"{str(value)[:40]!r} is none of {', '.join(choices)}")
        return choices[str(value)]
    if name in PARSERS:
        return PARSERS[name](value)
    if not isinstance(getattr(_DEFAULTS, name), bool):
        return str(value)  # a name or a path
    if not isinstance(value, bool):
        raise BadInput(f"{str(value)[:40]!r} is not True or False")
    return value


def _name_arguments(text: str) -> str:
    """Replace option names by argument names."""
    return _OPTION.sub(lambda match: match[1].replace("-", "_"), text)
