"""Arms the recorder in a process that has just imported torch."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.integrations.program.session import Session
from zprof.integrations.program.settings import VARIABLE, ProgramSettings, forget

if TYPE_CHECKING:
    from zprof.collectors.program.recording import ProgramRecording


class Here:
    """The recording of this process, from the import of torch to the end of the program."""

    def __init__(self, settings: ProgramSettings, session: Session) -> None:
        self._settings, self._session = settings, session
        self._recording: ProgramRecording | None = None

    def begin(self) -> None:
        """Watch this process; a fault of ours is a note, and never reaches the program."""
        try:
            self._recording = self._armed()
        except Exception as error:
            self._session.say(
                f"{sys.executable}: the recorder did not start ({type(error).__name__}: {error})"
            )

    def finish(self) -> None:
        """The program is over."""
        if self._recording is not None:
            self._recording.finish()

    def _armed(self) -> "ProgramRecording":
        from zprof.collectors.memory.mode import MemoryMode
        from zprof.collectors.program.recording import Plan, ProgramRecording
        from zprof.collectors.schedule import Schedule

        settings = self._settings
        plan = Plan(
            path=Path(settings.run),
            schedule=Schedule(skip=settings.skip, memory=settings.memory, time=settings.time),
            memory_mode=MemoryMode(settings.memory_mode),
            init=settings.init,
            may_record=self._may_record,
            say=self._session.say,
        )
        recording = ProgramRecording(plan)
        recording.arm()
        return recording

    def _may_record(self, rank: int) -> bool:
        forget(os.environ)
        return self._session.claim(rank)


def begin_in_child() -> None:
    """As the environment says, for a child of ``zprof record``."""
    settings = ProgramSettings.from_json(os.environ[VARIABLE])
    Here(settings, Session(Path(settings.session))).begin()
