"""Define the leaves of ``zprof doctor``: what zprof can use on this machine (schema ``zprof.doctor/1``)."""

from enum import StrEnum

from msgspec import Struct

DOCTOR_SCHEMA = "zprof.doctor/1"


class CheckStatus(StrEnum):
    """OK: usable. ABSENT: missing but not required. BROKEN: required but not usable."""

    OK = "ok"
    ABSENT = "absent"
    BROKEN = "broken"


class DoctorCheck(Struct, frozen=True, kw_only=True):
    """One check: the result, the features that need it, and what to do."""

    name: str
    status: CheckStatus
    found: str
    without: str = ""
    remedy: str = ""


class Doctor(Struct, frozen=True, kw_only=True):
    """Result of all checks."""

    schema: str = DOCTOR_SCHEMA
    zprof_version: str
    checks: tuple[DoctorCheck, ...]

    @property
    def is_well(self) -> bool:
        """Return True if everything required works."""
        return all(check.status is not CheckStatus.BROKEN for check in self.checks)
