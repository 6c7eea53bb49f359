"""Define gaps: values that could not be measured, why, and how to make them measurable."""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class GapKind(StrEnum):
    """Subject of a gap, for code that distinguishes gaps; sentences are only for readers."""

    RANK_MISSING = "rank_missing"
    RANK_CUT_SHORT = "rank_cut_short"
    DISK_FULL = "disk_full"
    PROGRAM_FAILED = "program_failed"
    RECORDING = "recording"
    RECORDING_CUT_SHORT = "recording_cut_short"
    SKIPPED_STEPS = "skipped_steps"
    FILE = "file"
    DEVICE = "device"
    UNKNOWN_DEVICE = "unknown_device"
    STEPS = "steps"
    STEP_BOUNDARIES = "step_boundaries"
    TIME = "time"
    HOST_TIMES = "host_times"
    CLOCKS = "clocks"
    NO_COLLECTIVES = "no_collectives"
    NO_BACKWARD = "no_backward"
    COLLECTIVES = "collectives"
    MATCHING = "matching"
    EXPOSED_TIME = "exposed_time"
    VOLUME = "volume"
    MEMORY = "memory"
    MEMORY_PART = "memory_part"
    ALLOCATOR_EVENTS = "allocator_events"
    ALLOCATOR_HISTORY = "allocator_history"
    BEFORE_HISTORY = "before_history"
    DEVICE_MEMORY = "device_memory"
    MODEL_STATES = "model_states"
    TIMES_NOT_COMPARABLE = "times_not_comparable"
    NO_INTERVAL = "no_interval"
    UNEQUAL_WORK = "unequal_work"
    BASELINE = "baseline"
    UNTESTED_RULE = "untested_rule"
    BUSY_PROCESSORS = "busy_processors"
    REPLAY = "replay"
    PREDICTION = "prediction"
    PLAN = "plan"
    SECOND_OPINION = "second_opinion"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> "GapKind":
        return cls.OTHER  # a kind from a newer version


class Gap(Struct, frozen=True, kw_only=True):
    """A value that is unknown, which never counts as 0 or as OK.

    ``causes``: the causes that could not be tested for this reason. ``step``: the step in which a rank ended;
    ``detail``: how it ended, in a few words (the type of an error, a signal).
    """

    what: str
    reason: str
    remedy: str
    rank: int | None = None
    kind: GapKind = GapKind.OTHER
    causes: tuple[str, ...] = ()
    step: int | None = None
    detail: str = ""


class GapText(NamedTuple):
    """The common part of all gaps of a key; the texts are templates, see ``gap_texts.make_gap``."""

    kind: GapKind
    what: str
    reason: str
    remedy: str
