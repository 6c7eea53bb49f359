"""The rows of table ``device``, and their bounded log."""

from dataclasses import dataclass, fields
from enum import StrEnum

from zprof.collectors.base import Columns


class Reason(StrEnum):
    """Why a sample was taken: its time had come, or a group's first collective is about to run, or has."""

    PERIOD = "period"
    BEFORE_GROUP = "before_group"
    AFTER_GROUP = "after_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One sample of one device; the fields are the columns of ``zprof.run.memory_schema.DEVICE``."""

    time_ns: int
    device: str
    reason: str
    group: str | None
    cost_ns: int
    process_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    throttle_reasons: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    pcie_sent_bytes_per_s: int | None = None
    pcie_received_bytes_per_s: int | None = None
    nvlink_sent_bytes_per_s: int | None = None
    nvlink_received_bytes_per_s: int | None = None


class RowLog:
    """Keeps at most ``most`` rows of the period; those at groups are few and all stay.

    Two threads append; a list's append and a copy of it are atomic, and only the sampler's thread thins.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ticks: list[list[DeviceRow]] = []
        self._rows = 0
        self._at_groups: list[DeviceRow] = []

    def add_tick(self, rows: list[DeviceRow]) -> bool:
        """Keep the rows of one moment.  True: every second moment was dropped to make room."""
        if not rows:
            return False
        self._ticks.append(rows)
        self._rows += len(rows)
        if self._rows <= self._most:
            return False
        self._ticks = self._ticks[::2]
        self._rows = sum(map(len, self._ticks))
        return True

    def add_at_group(self, row: DeviceRow) -> None:
        """Keep a row before or after a group's first collective."""
        self._at_groups.append(row)

    def columns(self) -> Columns:
        """The table as columns, in order of time."""
        rows = [row for tick in list(self._ticks) for row in tick] + list(self._at_groups)
        rows.sort(key=lambda row: row.time_ns)
        return {field.name: [getattr(row, field.name) for row in rows] for field in fields(DeviceRow)}
