"""How measured, modelled and predicted figures of a run read: every predicted one begins with ``~``."""

from collections.abc import Sequence

from zprof.model.planning.whatif import Predicted
from zprof.model.units import format_bytes, format_ms, format_ns
from zprof.reports.plan.words import PREDICTED, UNKNOWN

STEP, PEAK = "wall_ns", "peak_bytes"
_NAMES = {
    "wall_ns": "step",
    "peak_bytes": "peak",
    "exposed_memcpy_ns": "exposed copies",
    "efficiency_ratio": "efficiency",
}


def figure_of(entries: Sequence[Predicted], name: str) -> Predicted | None:
    """That of the name, where it is predicted."""
    return next((entry for entry in entries if entry.name == name and entry.predicted is not None), None)


def term_name(name: str) -> str:
    """``exposed_wait_ns`` as ``exposed wait``."""
    return _NAMES.get(name, name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "))


def predicted_words(entry: Predicted | None) -> str:
    """A predicted figure with its mark, as a cell: times in ms, sizes with their unit."""
    return UNKNOWN if entry is None else marked(cell_words(entry.name, entry.predicted))


def range_words(entry: Predicted | None) -> str:
    """From where to where it may be, as a cell."""
    if entry is None or entry.low is None or entry.high is None:
        return UNKNOWN
    return f"{marked(cell_words(entry.name, entry.low))} to {marked(cell_words(entry.name, entry.high))}"


def saving_words(saving_ns: tuple[int, int] | None) -> str:
    """Lowest to highest, in ms."""
    if saving_ns is None:
        return UNKNOWN
    low, high = (marked(_ms_words(saving)) for saving in saving_ns)
    return low if low == high else f"{low} to {high}"


def _ms_words(saving_ns: int) -> str:
    """Nothing has no sign."""
    shown = format_ms(saving_ns)
    return shown.removeprefix("-") if not float(shown) else shown


def plain_words(name: str, value: int | None) -> str:
    """With its unit: for sentences."""
    if value is None:
        return UNKNOWN
    return format_ns(value) if name.endswith("_ns") else format_bytes(value)


def cell_words(name: str, value: int | None) -> str:
    """Times as the ledger has them, in ms."""
    if value is None:
        return UNKNOWN
    return format_ms(value) if name.endswith("_ns") else format_bytes(value)


def marked(text: str) -> str:
    """What is unknown is no prediction."""
    return text if text == UNKNOWN else f"{PREDICTED}{text}"


def said_words(entry: Predicted) -> str:
    """A predicted figure with its mark and its unit: for sentences."""
    return marked(plain_words(entry.name, entry.predicted))


def span_words(entry: Predicted) -> str:
    """The range in brackets, for sentences; nothing where it has none."""
    if entry.low is None or entry.high is None:
        return ""
    return f" ({marked(plain_words(entry.name, entry.low))} to {marked(plain_words(entry.name, entry.high))})"
