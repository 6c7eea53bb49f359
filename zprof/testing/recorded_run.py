"""A run that a test recorded, with its report."""

from functools import cached_property
from typing import TYPE_CHECKING

from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

if TYPE_CHECKING:
    from zprof.model.report import Report


class RecordedRun(Run):
    """A recording on disk, as :func:`zprof.load` opens it; its report is made when it is first asked for."""

    @cached_property
    def report(self) -> "Report":
        """What :func:`zprof.diagnose` says of it.

        Raises:
            BadInput: the recording is damaged.
        """
        from zprof.rules.diagnose import diagnose

        return diagnose(self)

    def described(self, training: TrainingFacts) -> "RecordedRun":
        """The same run with other facts of its program, and a report that is not made yet."""
        other = RecordedRun(self.path)
        other.manifest = super().described(training).manifest
        return other
