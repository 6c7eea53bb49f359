"""One event as it stands in the file, typed: only what every row needs, so that the rest costs nothing."""

import msgspec

from zprof.collectors.kineto.columns import ABSENT

Identity = int | str | None
_NO_DIGITS = msgspec.Raw(b"")


class FewArguments(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "external_id": "External id",
        "external_id_2021": "external id",
        "collective": "Collective name",
        "group": "Process Group Name",
    },
):
    """The arguments of a column each; ``collective`` and ``group`` mark rows that need the others too."""

    stream: Identity = ABSENT
    correlation: Identity = ABSENT
    external_id: Identity = ABSENT
    external_id_2021: Identity = None
    bytes: Identity = ABSENT
    collective: Identity = None
    group: Identity = None
    name: str | None = None


NO_ARGUMENTS = FewArguments()


class Event(msgspec.Struct, gc=False):
    """With times as doubles."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: Identity = None
    tid: Identity = None
    args: FewArguments = NO_ARGUMENTS


class ExactEvent(msgspec.Struct, gc=False):
    """With the digits of its begin, for files whose times a double is too coarse for."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = _NO_DIGITS
    dur: float | None = None
    pid: Identity = None
    tid: Identity = None
    args: FewArguments = NO_ARGUMENTS


#: ``strict=False``: ``"12"`` and ``1.0`` are identities, ``"1.5"`` is a time.
EVENTS = msgspec.json.Decoder(list[Event], strict=False)
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent], strict=False)
TEXTS = msgspec.json.Decoder(list[msgspec.Raw])

#: What decoding raises for text that is not as it should be.
NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
