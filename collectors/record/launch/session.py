"""Share settings and notes among the processes of one recording, and start the recorder in them."""

import json
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins

from zprof.collectors.record.launch.last_words import LastWords

if TYPE_CHECKING:
    from zprof.collectors.record.program.recording import ProgramRecording
    from zprof.collectors.record.watch.watcher import WatchPlan


#: Entries of the flight recorder, and the variables that torch reads before it starts one.
_FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
_OLDER_NAMES = {"TORCH_FR_BUFFER_SIZE": ("TORCH_NCCL_TRACE_BUFFER_SIZE",)}
_MAX_NOTES = 1000
_MAX_NOTE_LENGTH = 500
#: Name prefix of the file that exists while a rank writes.
_WRITING = "writing."
#: Name prefix of the file of a rank that was saved because it is stuck.
_STALL = "stall."
VARIABLE = "ZPROF_RECORD"
#: Prepended to PYTHONPATH, so that each Python child runs the ``sitecustomize`` in it.
STARTUP_FOLDER = Path(__file__).parent / "startup"
#: Parent folder of the package ``zprof``, for children that start elsewhere.
PACKAGE_PARENT = Path(__file__).parents[4]


class Session:
    """Files that children write and the parent reads, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._note_count = 0

    def claim(self, rank: int) -> bool:
        """Return True if this process is the first to train as this rank, and therefore records it.

        If a launcher restarts a failed job, the new ranks replace those of the earlier attempt.
        """
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        try:
            (self.folder / f"rank{rank}.{attempt}").touch(exist_ok=False)
        except FileExistsError:
            self.write_note(f"several processes trained as rank {rank}: only the first one was recorded")
            return False
        return True

    def write_note(self, note: str) -> None:
        """Write a line for the parent."""
        self._note_count += 1  # one file per note: a process may write several
        path = self.folder / f"note.{os.getpid()}.{self._note_count}"
        with suppress(OSError):  # the parent was killed, and another recording removed its folder
            path.write_text(note, encoding="utf-8")

    def set_writing(self, rank: int, is_writing: bool) -> None:
        """Tell the parent that a rank writes its recording, or has written it."""
        path = self.folder / f"{_WRITING}{rank}"
        with suppress(OSError):  # as for notes
            path.touch() if is_writing else path.unlink(missing_ok=True)

    def report_stall(self, rank: int, seconds: float) -> None:
        """Tell the parent that a rank is stuck and was saved."""
        with suppress(OSError):  # as for notes
            path = self.folder / f".{_STALL}{rank}"
            path.write_text(f"{seconds:.0f}", encoding="utf-8")
            path.rename(self.folder / f"{_STALL}{rank}")

    def take_stalls(self) -> list[float]:
        """Return how long ranks had made no progress when they were saved, each stall once."""
        stalls = []
        for path in self.folder.glob(f"{_STALL}*"):
            with suppress(OSError, ValueError):
                stalls.append(float(path.read_text(encoding="utf-8")))
                path.unlink()
        return stalls

    def list_writing_ranks(self) -> list[int]:
        """Return the ranks that are writing, in order."""
        names = [path.name.removeprefix(_WRITING) for path in self.folder.glob(f"{_WRITING}*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def notes(self) -> Iterator[str]:
        """Yield each distinct note once."""
        seen: set[str] = set()
        for path in sorted(self.folder.glob("note.*"))[:_MAX_NOTES]:
            note = path.read_text(encoding="utf-8", errors="replace")[:_MAX_NOTE_LENGTH]
            if note not in seen:
                seen.add(note)
                yield note


class ProgramSettings(Struct, frozen=True, kw_only=True):
    """Settings of a recording; ``session`` is the folder for notes of children, or empty.

    ``watch_s``: a rank without progress for this long is saved, 0 for never; ``since_ns``: start of the job.
    """

    run: str
    skip: int = 2
    memory: int = 2
    time: int = 8
    memory_mode: str = "full"
    init: bool = True
    watch_s: float = 0
    since_ns: int = 0
    session: str = ""
    home: str = str(PACKAGE_PARENT)

    def to_json(self) -> str:
        """Return the settings as the value of the environment variable."""
        return json.dumps(to_builtins(self))

    @staticmethod
    def from_json(text: str) -> "ProgramSettings":
        """Parse the output of :meth:`to_json`; raise ValueError or TypeError for anything else."""
        return ProgramSettings(**json.loads(text))


def make_child_environment(settings: ProgramSettings) -> dict[str, str]:
    """Return this process's environment with the variables that start the recorder in Python children."""
    environment = dict(os.environ)
    previous = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP_FOLDER), *([previous] if previous else [])])
    environment[VARIABLE] = settings.to_json()
    if settings.watch_s:
        turn_on_flight_recorder(environment)
    return environment


def turn_on_flight_recorder(environment: MutableMapping[str, str]) -> None:
    """Let torch keep the last collectives, and NCCL dump them at a timeout, unless the user set the
    variables.
    """
    for name, value in _FLIGHT_RECORDER.items():
        if not any(each in environment for each in (name, *_OLDER_NAMES.get(name, ()))):
            environment[name] = value


def remove_recording(environment: MutableMapping[str, str]) -> None:
    """Remove the recorder's variables, because children of a recording process do not train."""
    environment.pop(VARIABLE, None)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    rest = [path for path in paths if path != str(STARTUP_FOLDER)]
    if len(rest) == len(paths):
        return
    if rest:
        environment["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        del environment["PYTHONPATH"]


class RecordedProcess:
    """Recording of this process, from the import of torch to the end of the program."""

    def __init__(
        self,
        settings: ProgramSettings,
        session: Session,
        say_stuck: Callable[[int, float], None] | None = None,
    ) -> None:
        self._settings, self._session, self._say_stuck = settings, session, say_stuck
        self._recording: ProgramRecording | None = None
        self._last_words = LastWords(session.folder)

    def start(self) -> None:
        """Start recording; a failure becomes a note and never reaches the program."""
        try:
            self._recording = self._start_recording()
        except Exception as error:
            self._session.write_note(
                f"{sys.executable}: the recorder did not start ({type(error).__name__}: {error})"
            )
        self._last_words.start()  # after the recorder, whose hook writes for long when the program fails

    def note_end(self, error: BaseException | None) -> None:
        """Report how the program that ran in this process ended."""
        self._last_words.note_end(error)

    def finish(self) -> None:
        """Finish the recording after the program."""
        if self._recording is not None:
            self._recording.finish()

    def _start_recording(self) -> "ProgramRecording":
        from zprof.collectors.record.program.recording import ProgramRecording, RecordingPlan
        from zprof.collectors.record.schedule import MemoryMode, RecordingSchedule

        settings = self._settings
        plan = RecordingPlan(
            path=Path(settings.run),
            schedule=RecordingSchedule(skip=settings.skip, memory=settings.memory, time=settings.time),
            memory_mode=MemoryMode(settings.memory_mode),
            init=settings.init,
            may_record=self._may_record,
            say=self._session.write_note,
            set_writing=self._session.set_writing,
            watch=self._make_watch_plan(),
        )
        recording = ProgramRecording(plan)
        recording.arm()
        return recording

    def _make_watch_plan(self) -> "WatchPlan | None":
        from zprof.collectors.record.watch.watcher import WatchPlan

        settings = self._settings
        if not settings.watch_s:
            return None
        return WatchPlan(
            run=Path(settings.run),
            limit_s=settings.watch_s,
            since_ns=settings.since_ns,
            say_stuck=self._say_stuck or self._session.report_stall,
        )

    def _may_record(self, rank: int) -> bool:
        remove_recording(os.environ)
        if not self._session.claim(rank):
            return False
        self._last_words.claim(rank)
        return True


def start_in_child() -> None:
    """Start recording in a child of ``zprof record``, with the settings from its environment."""
    settings = ProgramSettings.from_json(os.environ[VARIABLE])
    RecordedProcess(settings, Session(Path(settings.session))).start()
