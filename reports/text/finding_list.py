"""All causes that zprof knows, with the claim of each."""

from zprof.model.causes import FINDING_IDS
from zprof.model.printable import printable
from zprof.reports.pages import claims
from zprof.reports.text.layout import wrap

_FAMILIES = {
    "ZP1": "MEASUREMENT",
    "ZP2": "MEMORY",
    "ZP3": "WAITING",
    "ZP4": "TRANSFER AND VOLUME",
    "ZP5": "HOST AND DEVICE",
}


def finding_list() -> str:
    """By family and id."""
    lines: list[str] = []
    family = ""
    for cause, claim in claims().items():
        identifier = FINDING_IDS[cause]
        if identifier[:3] != family:
            family = identifier[:3]
            lines += ["", _FAMILIES[family]]
        lines.append(f"  {identifier}  {cause.value}")
        lines += wrap(printable(claim or "no page yet"), first=" " * 9)
    return "\n".join(lines[1:]) + "\n"
