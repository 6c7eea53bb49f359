"""What this machine has of what zprof can use: the leaves of ``zprof doctor`` (schema ``zprof.doctor/1``)."""

from dataclasses import dataclass
from enum import StrEnum

DOCTOR_SCHEMA = "zprof.doctor/1"


class CheckStatus(StrEnum):
    """OK: there and usable.  ABSENT: not there, and zprof does without.  BROKEN: needed, and not usable."""

    OK = "ok"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at: what was found, what is lost without it, and what to do."""

    name: str
    status: CheckStatus
    found: str
    without: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """All of it."""

    schema: str = DOCTOR_SCHEMA
    zprof_version: str
    checks: tuple[Check, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing that is needed is broken."""
        return all(check.status is not CheckStatus.BROKEN for check in self.checks)
