"""What this machine has, as text: a line a check, and beneath it what to do where something is missing."""

from zprof.model.doctor import Check, CheckStatus, Doctor
from zprof.model.printable import printable
from zprof.reports.text.layout import heading, wrap

_MARKS = {CheckStatus.OK: "✓", CheckStatus.ABSENT: "-", CheckStatus.BROKEN: "✗"}
_NAME = 12


def render(doctor: Doctor) -> str:
    """All checks, in 80 columns."""
    lines = [heading(f"zprof {printable(doctor.zprof_version)}", _answer(doctor))]
    lines += [line for check in doctor.checks for line in _check(check)]
    return "\n".join(lines) + "\n"


def _answer(doctor: Doctor) -> str:
    broken = sum(check.status is CheckStatus.BROKEN for check in doctor.checks)
    absent = sum(check.status is CheckStatus.ABSENT for check in doctor.checks)
    if broken:
        return f"{broken} broken, {absent} absent"
    return f"works; {absent} absent, which is optional" if absent else "works"


def _check(check: Check) -> list[str]:
    lines = wrap(printable(check.found), first=f"  {_MARKS[check.status]} {check.name:<{_NAME}} ")
    if check.without:
        lines += wrap(f"without it: {printable(check.without)}", first=f"    {'':<{_NAME}} ")
    if check.remedy:
        lines += wrap(printable(check.remedy), first=f"    {'':<{_NAME}} → ")
    return lines
