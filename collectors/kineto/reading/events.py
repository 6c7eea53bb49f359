"""Type one event as it is written in the file: only what every row needs, so that the rest costs nothing."""

from typing import Any, Literal

import msgspec

from zprof.collectors.kineto.trace import ABSENT, ARGUMENT_KEYS

RawId = int | str | None
NO_TEXT = msgspec.Raw(b"")


class FewArguments(
    msgspec.Struct, gc=False, frozen=True, rename=ARGUMENT_KEYS | {"external_id_2021": "external id"}
):
    """What zprof reads of ``args``: four columns, then what is kept of rows that are about collectives.

    One decoding for both: to find the few rows of the second kind again would cost more than to read them.
    Lists, which operators of all kinds have, stay text.
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
    split_out: Any = None
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
    sync_kind: Any = None
    sync_stream: Any = None
    sync_record: Any = None
    sync_event: Any = None


NO_ARGUMENTS = FewArguments()


class Event(msgspec.Struct, gc=False):
    """With times as doubles."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: RawId = None
    tid: RawId = None
    args: FewArguments = NO_ARGUMENTS


class ExactEvent(msgspec.Struct, gc=False):
    """With the digits of its times, for files whose times a double is too coarse for."""

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
    """What every row needs, and what tells rows about collectives: the other fields cost as much again."""

    stream: RawId = ABSENT
    correlation: RawId = ABSENT
    external_id: RawId = ABSENT
    external_id_2021: RawId = None
    bytes: RawId = ABSENT
    collective: Any = None
    group: Any = None


NO_SPAN_ARGUMENTS = SpanArguments()

#: What libkineto calls its activities, and what it called some in 2020 and 2021: a word of a closed set comes
#: out of the decoder as one object, and is neither made nor hashed for each event.
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
    """An event with a duration; its fields in the order of the file, in which they are found fastest."""

    cat: Category | None = None
    name: str | None = None
    pid: RawId = None
    tid: RawId = None
    ts: float | None = None
    dur: float | None = None
    args: SpanArguments = NO_SPAN_ARGUMENTS


class NameEvent(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Says how a thread is called, or a process."""

    name: str | None = None
    tid: RawId = None
    args: FewArguments = NO_ARGUMENTS


class _FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Of a flow; of this and the following nothing is read."""


class _FlowStep(msgspec.Struct, gc=False, tag_field="ph", tag="t"):
    """A point on the way of a flow."""


class _FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """Of a flow."""


class _Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A moment."""


class _Counter(msgspec.Struct, gc=False, tag_field="ph", tag="C"):
    """A value at a moment."""


UsualEvent = Span | NameEvent | _FlowStart | _FlowStep | _FlowEnd | _Instant | _Counter

#: ``strict=False``: ``"12"`` and ``1.0`` are identities, ``"1.5"`` is a time.
EVENTS_DECODER = msgspec.json.Decoder(list[Event], strict=False)
#: Refuses events of other kinds, and takes two thirds of the time.
USUAL_EVENTS_DECODER = msgspec.json.Decoder(list[UsualEvent], strict=False)
EVENT_DECODER = msgspec.json.Decoder(Event, strict=False)
EXACT_EVENTS_DECODER = msgspec.json.Decoder(list[ExactEvent], strict=False)

#: What decoding raises for text that is not as it should be.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
