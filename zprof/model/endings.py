"""How the processes of the ranks ended: which first, with which exit code or signal, and their last words."""

from enum import StrEnum

from msgspec import Struct

from zprof.model.findings import SourceLocation


class EndMoment(StrEnum):
    """Part of the recording in which a rank ended."""

    BEFORE_STEPS = "before_steps"
    IN_STEP = "in_step"
    AFTER_STEPS = "after_steps"


class RankEnd(Struct, frozen=True, kw_only=True):
    """The end of one rank; what is unknown is None or empty.

    ``time_ns``: when its program failed or ended, or else when its process was seen to have ended.
    ``exit_code`` is None and ``signal`` its name if a signal ended it. ``has_left``: its program was over,
    and the process was shutting down. ``error``: the exception that left the program. ``full_path``: what
    could not be written because the disk was full. ``last_words``: the last lines of its traceback or
    stderr. ``stack``: where its main thread was, innermost frame first; ``operation`` is the collective in
    it and ``location`` the line of the program. ``moment`` and ``step`` say when, relative to the recorded
    steps; ``after_ns``: since the start of the recording. ``is_first``: the end that the others follow from.
    """

    rank: int
    process: int
    host: str = ""
    time_ns: int | None = None
    exit_code: int | None = None
    signal: str = ""
    has_left: bool = False
    error: str = ""
    full_path: str | None = None
    last_words: tuple[str, ...] = ()
    stack: tuple[SourceLocation, ...] = ()
    operation: str = ""
    location: SourceLocation | None = None
    moment: EndMoment | None = None
    step: int | None = None
    after_ns: int | None = None
    is_first: bool = False

    @property
    def has_failed(self) -> bool:
        """True unless the rank ended with exit code 0 and wrote all, or it is unknown how."""
        return bool(self.exit_code or self.signal or self.error) or self.full_path is not None
