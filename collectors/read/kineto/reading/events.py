"""Declare the types that events are decoded into, with only the fields that zprof reads."""

from typing import Any, Literal

import msgspec

from zprof.collectors.read.kineto.trace import ABSENT, ARGUMENT_KEYS

RawId = int | str | None
NO_TEXT = msgspec.Raw(b"")
#: Exceptions that decoding raises for invalid text.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class FewArguments(
    msgspec.Struct, gc=False, frozen=True, rename=ARGUMENT_KEYS | {"external_id_2021": "external id"}
):
    """All fields of ``args`` that zprof reads: the fields of four columns, then those of collectives.

    Both are decoded together, because finding the few rows with collectives again would cost more. Lists,
    which all kinds of operators have, stay raw text.
    """

    stream: RawId = ABSENT
    correlation: RawId = ABSENT
    external_id: RawId = ABSENT
    external_id_2021: RawId = None
    bytes: RawId = ABSENT
    collective: Any = None
    group: Any = None
    name: Any = None
    dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    values: msgspec.Raw = NO_TEXT
    grid: msgspec.Raw = NO_TEXT
    elements_in: Any = None
    elements_out: Any = None
    split_in: Any = None
    group_id: Any = None
    group_description: Any = None
    group_ranks: Any = None
    group_size: Any = None
    sequence: Any = None
    dtype: Any = None
    rank: Any = None
    source_rank: Any = None
    destination_rank: Any = None
    first_global_rank: Any = None
    global_rank_stride: Any = None
    kind: Any = None
    task_type: Any = None
    rank_size: Any = None
    count: Any = None
    data_type: Any = None


NO_ARGUMENTS = FewArguments()


class TraceEvent(msgspec.Struct, gc=False):
    """An event of any kind, with times as doubles."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: RawId = None
    tid: RawId = None
    args: FewArguments = NO_ARGUMENTS


class ExactEvent(msgspec.Struct, gc=False):
    """An event with the digits of its times, for files whose times exceed the precision of a double."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
    pid: RawId = None
    tid: RawId = None
    args: FewArguments = NO_ARGUMENTS


class SpanArguments(
    msgspec.Struct, gc=False, frozen=True, rename=ARGUMENT_KEYS | {"external_id_2021": "external id"}
):
    """The arguments that every row needs, and those that identify collectives.

    Decoding the other fields of ``FewArguments`` would double the cost.
    """

    stream: RawId = ABSENT
    correlation: RawId = ABSENT
    external_id: RawId = ABSENT
    external_id_2021: RawId = None
    bytes: RawId = ABSENT
    collective: Any = None
    group: Any = None


NO_SPAN_ARGUMENTS = SpanArguments()

#: libkineto's activity names, including those of 2020 and 2021. A literal is decoded to one shared object,
#: which is neither created nor hashed per event.
Category = Literal[
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
    "gpu_memcpy",
    "gpu_memset",
    "kernel",
    "cuda_runtime",
    "cuda_driver",
    "cuda_sync",
    "cuda_profiler_range",
    "cpu_instant_event",
    "python_function",
    "overhead",
    "collective_comm",
    "external_correlation",
    "mtia_runtime",
    "mtia_ccp_events",
    "mtia_insight",
    "mtia_workloadd",
    "glow_runtime",
    "xpu_runtime",
    "hpu_op",
    "privateuse1_runtime",
    "privateuse1_driver",
    "Trace",
    "Operator",
    "Kernel",
    "Memcpy",
    "Memset",
    "Runtime",
    "",
]


class Span(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration. Fields are in file order, which decodes fastest."""

    cat: Category | None = None
    name: str | None = None
    pid: RawId = None
    tid: RawId = None
    ts: float | None = None
    dur: float | None = None
    args: SpanArguments = NO_SPAN_ARGUMENTS


class NameEvent(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """The name of a thread or a process."""

    name: str | None = None
    pid: RawId = None
    tid: RawId = None
    args: FewArguments = NO_ARGUMENTS


class _FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Start of a flow. No field of this type and the following types is read."""


class _FlowStep(msgspec.Struct, gc=False, tag_field="ph", tag="t"):
    """Intermediate point of a flow."""


class _FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """End of a flow."""


class _Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An instant event."""


class _CounterEvent(msgspec.Struct, gc=False, tag_field="ph", tag="C"):
    """A counter's value."""


UsualEvent = Span | NameEvent | _FlowStart | _FlowStep | _FlowEnd | _Instant | _CounterEvent

#: ``strict=False``: ``"12"`` and ``1.0`` are ids, ``"1.5"`` is a time.
EVENTS_DECODER = msgspec.json.Decoder(list[TraceEvent], strict=False)
#: Rejects uncommon events; takes two thirds of the time.
USUAL_EVENTS_DECODER = msgspec.json.Decoder(list[UsualEvent], strict=False)
EVENT_DECODER = msgspec.json.Decoder(TraceEvent, strict=False)
EXACT_EVENTS_DECODER = msgspec.json.Decoder(list[ExactEvent], strict=False)
