"""Arms the recorder in a process that has just imported torch."""

import os
import sys
from pathlib import Path

from zprof.integrations.program.session import Session
from zprof.integrations.program.settings import VARIABLE, ProgramSettings, forget


def begin(settings: ProgramSettings) -> None:
    """Watch this process; a fault of ours is a note, and never reaches the program."""
    session = Session(Path(settings.session)) if settings.session else None
    try:
        _arm(settings, session)
    except Exception as error:
        note = f"{sys.executable}: the recorder did not start ({type(error).__name__}: {error})"
        if session is not None:
            session.say(note)


def begin_in_child() -> None:
    """As the environment says, for a child of ``zprof record``."""
    begin(ProgramSettings.from_json(os.environ[VARIABLE]))


def _arm(settings: ProgramSettings, session: Session | None) -> None:
    from zprof.collectors.memory.mode import MemoryMode
    from zprof.collectors.program.recording import Plan, ProgramRecording
    from zprof.collectors.schedule import Schedule

    def may_record(rank: int) -> bool:
        forget(os.environ)
        return session is None or session.claim(rank)

    plan = Plan(
        path=Path(settings.run),
        schedule=Schedule(skip=settings.skip, memory=settings.memory, time=settings.time),
        memory_mode=MemoryMode(settings.memory_mode),
        init=settings.init,
        may_record=may_record,
    )
    ProgramRecording(plan).arm()
