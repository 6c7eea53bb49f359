"""What the model of a run took from it: pieces of a step, and the links that were fitted."""

from zprof.model.planning.whatif import Calibration, FittedLink
from zprof.tui.figures import Unit
from zprof.tui.plan.cells import PENDING
from zprof.tui.plan.foreseen import Foreseen
from zprof.tui.plan.planned import Planned
from zprof.tui.plan.said import plain
from zprof.tui.tables import Column, Line, Table, Word, numeric

_STEM = "outlook.calibration"
_SAYS = {
    "units": (Unit.COUNT, "units", "gathered and reduced one after the other"),
    "passes": (Unit.COUNT, "passes", "forwards and backwards in a step"),
    "forward_ns": (Unit.NS, "forward", "compute of a pass"),
    "backward_ns": (Unit.NS, "backward", "compute of a pass, recomputing included"),
    "optimizer_ns": (Unit.NS, "optimizer", "compute after the last pass"),
    "skew_ns": (Unit.NS, "skew", "compute of the slowest rank beyond the median one"),
    "prefetch": (Unit.COUNT, "prefetch", "units gathered ahead, as seen"),
    "steps": (Unit.COUNT, "steps", "of the run, that it was fitted to"),
}


def fit_table(planned: Planned) -> Table:
    """Empty while it is asked, and where the time of the run could not be modelled."""
    found = planned.calibration
    lines = [_piece(found, name) for name in _SAYS] if found else []
    links = found.links if found else ()
    lines += [line for at, link in enumerate(links) for line in _link(at, link)]
    return Table(
        name="plan fit",
        title="what the model took from this run",
        columns=(
            Column(title="of the model", rest=True),
            numeric("value"),
            Column(title="what", rest=True),
        ),
        lines=tuple(lines),
        help="Every prediction rests on these. Latency and bandwidth are those of a line through the times "
        "of the run's own messages.",
        note=_note(planned),
    )


def _note(planned: Planned) -> str:
    if planned.calibration is not None:
        slowest = planned.calibration.slowest_rank
        return "" if slowest is None else f"rank {slowest} is the slowest"
    return PENDING if planned.answer is None else "the time of this run could not be modelled: g says why"


def _piece(found: Calibration, name: str) -> Line:
    unit, title, says = _SAYS[name]
    return _row(name, title, getattr(found, name), unit, says, f"{_STEM}.{name}")


def _link(at: int, link: FittedLink) -> list[Line]:
    stem = f"{_STEM}.links[{at}]"
    fitted = f"{link.messages} messages, off by {plain(link.residual_ratio, Unit.RATIO)}: {link.how}"
    name = f"{link.kind} {link.group}".strip()
    latency, rate = f"{stem}.latency_ns", f"{stem}.busbw_bytes_per_s"
    return [
        _row(latency, f"{name}, latency", link.latency_ns, Unit.NS, fitted, latency),
        _row(rate, f"{name}, bus bandwidth", link.busbw_bytes_per_s, Unit.BYTES_PER_S, fitted, rate),
    ]


def _row(key: str, title: str, value: float | None, unit: Unit, says: str, leaf: str) -> Line:
    said = "\n".join(
        [
            f"{title}: {says}",
            "",
            "what the model of this run took from it, and predictions rest on",
            "zprof whatif RUN -f json, and the report that e writes here, have it as",
            f"  {leaf}",
        ]
    )
    number = Foreseen(
        value=value,
        unit=unit,
        leaves=(leaf,),
        words=plain(value, unit),
        said=said,
        assumption="",
        is_predicted=False,
    )
    return Line(key=key, cells=(Word(title), number, Word(says)))
