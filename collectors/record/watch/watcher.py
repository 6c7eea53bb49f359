"""Watch this rank on a thread of its own: save what it has when it makes no progress.

Progress is a collective that any thread has entered, or a step of an optimizer. The thread looks about once a
second at counters that torch keeps anyway; nothing is hooked per collective. It raises nothing and ends
nothing. If the GIL is held for so long that this thread cannot run, a thread of faulthandler, which needs no
GIL, writes where all threads are.

What a rank has can be read from any thread: its flight recorder, its process groups, the Python stacks of all
threads.
"""

import atexit
import faulthandler
import json
import os
import pickle
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from msgspec import Struct
from torch.optim.optimizer import register_optimizer_step_post_hook

from zprof.collectors.record.base import Columns, first_line
from zprof.collectors.record.identity import describe_device
from zprof.collectors.record.torch_private import (
    ProcessGroupFacts,
    dump_flight_recorder,
    dump_flight_status,
    list_process_groups,
)
from zprof.collectors.record.watch.shared_files import (
    BareRank,
    GroupProgress,
    RankFiles,
    RankState,
    Stall,
    StallMark,
    StallWriter,
    agree_on_run_id,
    list_stalls,
    make_bare_manifest,
)
from zprof.collectors.record.watch.silent_ranks import (
    TEXT_AFTER_LIMITS,
    Frame,
    ThreadStack,
    make_thread_tables,
    parse_thread_text,
    save_silent_ranks,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

_MAX_PERIOD_S = 1.0
_PERIODS_PER_LIMIT = 5
_MAX_ERRORS = 5
_JOIN_S = 2.0
#: Start of the names of zprof's own threads.
_OWN_THREADS = "zprof-"
_MAX_FRAMES = 200
#: Also changes when an operation ends with an error, after which gloo's program may be where it was.
_COMPLETED = re.compile(rb'"last_completed_collective":"-?\d+"')


class WatchPlan(Struct, frozen=True, kw_only=True):
    """What is watched. ``since_ns``: files in the run that are older belong to another job. ``say_stuck`` is
    called with the rank and the seconds without progress when a rank was saved because it is stuck.
    """

    run: Path
    limit_s: float
    since_ns: int = 0
    say_stuck: Callable[[int, float], None] = lambda rank, seconds: None


class RankWatch:
    """Watches this process from the time at which it is a rank of a process group."""

    def __init__(self, plan: WatchPlan) -> None:
        self._plan = plan
        self._limit_ns = int(plan.limit_s * 1e9)
        self._steps = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._step_hook: Any = None
        self._process_id = 0
        self._files: RankFiles | None = None
        self._detector = StallDetector(self._limit_ns, time.monotonic_ns())
        self._writer: StallWriter | None = None
        self._last_save: tuple[int, Mapping[str, Columns], Sequence[Gap]] | None = None
        self._rank, self._errors = 0, 0
        self._stall_start_ns = 0
        self._was_distributed = False
        self._moves = self._progress_ns = 0
        self._run_id = ""
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the thread."""
        self._process_id = os.getpid()
        self._step_hook = register_optimizer_step_post_hook(self._count_step)
        self._thread = threading.Thread(target=self._run, name="zprof-watch", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop watching, at the end of the program; a stall that it outlived is over."""
        if self._process_id != os.getpid():
            return
        self._process_id = 0
        atexit.unregister(self.stop)
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._step_hook.remove()
        faulthandler.cancel_dump_traceback_later()
        try:
            has_failed = getattr(sys, "last_type", None) is not None
            is_saved = self._detector.is_saved and not has_failed
            has_gone_on = is_saved and self._has_gone_on()
            if has_gone_on:
                self._resume()
            if self._files is not None:
                self._files.remove(is_saved=is_saved and not has_gone_on)
        except Exception:
            return  # the program has ended

    def agree_on_run_id(self, own_id: str) -> str:
        """Return the id of the run that all ranks of this job take."""
        if not self._run_id:
            self._run_id = agree_on_run_id(self._plan.run, own_id, self._plan.since_ns)
        return self._run_id

    def hold_writes(self) -> AbstractContextManager[object]:
        """Return a context in which nothing is saved: the folder of this rank is created anew."""
        return self._lock

    def attach(self, recorder: StallWriter) -> None:
        """Save into a recording from now on.

        The last stall is saved into it again. One that ended before the first step, as imports and
        compilation do, stays marked as ended: the user was told that it is in the run.
        """
        with self._lock:
            self._writer = recorder
            if self._last_save is not None:
                recorder.save_stall(StallMark.STUCK, *self._last_save)
                if not self._detector.is_saved:
                    recorder.save_stall(StallMark.RESUMED, self._last_save[0], {}, ())

    def _count_step(self, *_: object) -> None:
        self._steps += 1

    def _run(self) -> None:
        period_s = min(_MAX_PERIOD_S, self._plan.limit_s / _PERIODS_PER_LIMIT)
        while not self._ended.wait(period_s) and self._errors < _MAX_ERRORS:
            try:
                if self._files is not None or self._find_rank():
                    self._look()
            except Exception as error:  # an error in zprof must never reach the program
                self._errors += 1
                self._note_error(error)

    def _find_rank(self) -> bool:
        """Return True if this process is a rank of a group, or has recorded a step."""
        is_distributed = dist.is_available() and dist.is_initialized()
        if not is_distributed and self._writer is None:
            return False
        self._was_distributed = is_distributed
        self._rank = dist.get_rank() if is_distributed else int(os.environ.get("RANK", "0"))
        self.agree_on_run_id(f"{time.time_ns()}-{os.getpid()}")
        self._files = RankFiles(self._plan.run, self._rank)
        return True

    def _look(self) -> None:
        assert self._files is not None
        text = self._files.read_text()
        if text and not self._detector.is_saved:  # a stall that is saved may go on: this thread was late
            self._save_held(text)
        now_ns = time.monotonic_ns()
        # Nobody waits for a rank that has left all groups, whatever it still does.
        progress = now_ns if self._has_left() else (self._steps, read_progress())
        stalls = list_stalls(self._plan.run)
        requests = frozenset(each for each in stalls if each.rank != self._rank)
        action = self._detector.observe(now_ns, progress, requests)
        if self._detector.moves != self._moves:
            self._moves, self._progress_ns = self._detector.moves, time.time_ns()
        self._files.write_state(self._describe())
        faulthandler.dump_traceback_later(
            TEXT_AFTER_LIMITS * self._plan.limit_s, exit=False, file=self._files.descriptor
        )
        if action is StallAction.SAVE:
            self._save(self._detector.get_stall_ns(now_ns), stalls)
        elif action is StallAction.RESUME:
            self._resume()
        if self._detector.is_stuck and min(stalls, default=None) == min(
            (each for each in stalls if each.rank == self._rank), default=None
        ):
            save_silent_ranks(self._plan.run)

    def _has_gone_on(self) -> bool:
        """Return True if the program, at its end, is known to have left the stall in which it was saved."""
        if self._detector.is_stuck:
            return self._has_left() or not self._detector.is_at((self._steps, read_progress()))
        return all(each.rank == self._rank for each in list_stalls(self._plan.run))

    def _has_left(self) -> bool:
        return self._was_distributed and not dist.is_initialized()

    def _save(self, stall_ns: int, stalls: frozenset[Stall]) -> None:
        assert self._files is not None
        self._stall_start_ns = time.monotonic_ns() - stall_ns
        if self._detector.is_stuck:
            self._files.set_stuck(True)
        tables, gaps = read_tables(read_threads())
        is_written = self._write(StallMark.STUCK, stall_ns, tables, gaps)
        if is_written and self._detector.is_stuck and not stalls:
            self._plan.say_stuck(self._rank, stall_ns / 1e9)

    def _save_held(self, text: str) -> None:
        """Save a stall that has ended: the GIL was held, and is free again."""
        tables, gaps = read_tables(parse_thread_text(text))
        stall_ns = int(TEXT_AFTER_LIMITS * self._limit_ns)
        self._write(StallMark.STUCK, stall_ns, tables, gaps)
        self._write(StallMark.RESUMED, stall_ns, {}, ())

    def _resume(self) -> None:
        if self._files is not None:
            self._files.set_stuck(False)
        self._write(StallMark.RESUMED, time.monotonic_ns() - self._stall_start_ns, {}, ())

    def _write(self, kind: str, stall_ns: int, tables: Mapping[str, Columns], gaps: Sequence[Gap]) -> bool:
        with self._lock:
            if self._writer is None:
                is_distributed = dist.is_available() and dist.is_initialized()
                manifest = make_bare_manifest(
                    dist.get_world_size() if is_distributed else 1,
                    dist.get_backend() if is_distributed else "none",
                    self._run_id,
                    describe_device(),
                )
                self._writer = BareRank(self._plan.run, self._rank, manifest)
            if kind == StallMark.STUCK:
                self._last_save = stall_ns, tables, gaps
            return self._writer.save_stall(kind, stall_ns, tables, gaps)

    def _describe(self) -> RankState:
        is_distributed = dist.is_available() and dist.is_initialized()
        return RankState(
            rank=self._rank,
            world_size=dist.get_world_size() if is_distributed else 1,
            backend=dist.get_backend() if is_distributed else "none",
            host=socket.gethostname(),
            process=os.getpid(),
            time_ns=time.time_ns(),
            limit_ns=self._limit_ns,
            progress_ns=self._progress_ns,
            has_begun=self._moves > 1,  # the first is the first look
            run_id=self._run_id,
            groups=list_group_progress() if is_distributed else (),
        )

    def _note_error(self, error: Exception) -> None:
        gap = make_gap("watch_failed", error=first_line(error))
        if self._writer is not None and self._errors == 1:
            try:
                self._writer.save_stall("", 0, {}, [gap])
            except Exception:
                return


class StallAction(StrEnum):
    """What is to be done now."""

    SAVE = "save"
    RESUME = "resume"


class StallDetector:
    """Follow the progress of one rank: when its state is saved, and when it went on. Has no clock or thread.

    Args:
        limit_ns: A rank is stuck after this time without progress.
        now_ns: The time of the start, on any clock.
    """

    def __init__(self, limit_ns: int, now_ns: int) -> None:
        self._limit_ns, self._progress_ns = limit_ns, now_ns
        self._progress: Hashable = None
        self._answered: Set[Hashable] = frozenset()
        self._forget_ns = now_ns
        #: How often the rank has moved.
        self.moves = 0
        self.is_stuck = False
        #: The state was saved, and the stall has not ended.
        self.is_saved = False

    def observe(self, now_ns: int, progress: Hashable, requests: Set[Hashable]) -> StallAction | None:
        """Return what is to be done.

        A rank that moves is saved too, once per request: others may wait for it. That stall ends when nobody
        is stuck any more. After a stall of its own that ended, it is saved for the same others only if they
        are still stuck one limit later.

        Args:
            now_ns: The time of this observation.
            progress: Anything that changes whenever the rank has moved.
            requests: The stalls of other ranks that have not ended.
        """
        has_moved = progress != self._progress
        if has_moved:
            self._progress, self._progress_ns = progress, now_ns
            self.moves += 1
        if not self.is_saved and now_ns >= self._forget_ns:
            self._answered = frozenset()
        if self.is_stuck:
            self._answered |= requests
            if has_moved:
                self.is_stuck = self.is_saved = False
                self._forget_ns = now_ns + self._limit_ns
                return StallAction.RESUME
            return None
        if now_ns - self._progress_ns >= self._limit_ns:
            self.is_stuck = True
        elif self.is_saved and not requests:
            self.is_saved = False
            return StallAction.RESUME
        elif not requests - self._answered:
            return None
        self._answered |= requests
        self.is_saved = True
        return StallAction.SAVE

    def is_at(self, progress: Hashable) -> bool:
        """Return True if the rank has not moved since the last observation."""
        return progress == self._progress

    def get_stall_ns(self, now_ns: int) -> int:
        """Return how long the rank has made no progress."""
        return now_ns - self._progress_ns


def read_progress() -> bytes:
    """Return a text that changes whenever a rank has entered a collective, about 5 us.

    NCCL's host enters collectives long before they are executed, so their ends count too.
    """
    nccl, others = dump_flight_status()
    return nccl + _COMPLETED.sub(b"", others)


def list_group_progress() -> tuple[GroupProgress, ...]:
    """Return the process groups with their global ranks, and how far each one got."""
    nccl, others = dump_flight_status()
    numbers: dict[int, Any] = {}
    for text in (others, nccl):
        numbers |= {
            int(number): facts
            for number, facts in ((json.loads(text).get("pg_status") if text else None) or {}).items()
        }
    groups = list_process_groups()
    ordered = sorted(numbers)
    is_complete = len(ordered) == len(groups)
    progress = []
    for index, group in enumerate(groups):
        facts: Mapping[str, str] = numbers[ordered[index]] if is_complete else {}
        enqueued, completed = (facts.get(f"last_{state}_collective") for state in ("enqueued", "completed"))
        progress.append(
            GroupProgress(
                name=group.name,
                description=group.description,
                ranks=group.ranks,
                enqueued=None if enqueued is None else int(enqueued),
                completed=None if completed is None else int(completed),
            )
        )
    return tuple(progress)


def read_tables(stacks: Sequence[ThreadStack]) -> tuple[dict[str, Columns], list[Gap]]:
    """Return the tables ``flight``, ``flight_group``, ``flight_stack`` and ``flight_thread``, and gaps.

    ``stacks``: where the threads are or were.
    """
    tables, gaps = _read_flight_tables()
    numbers = tables["flight_stack"]["stack"]
    threads = make_thread_tables(stacks, 1 + max(numbers, default=-1))
    tables["flight_thread"] = threads["flight_thread"]
    tables["flight_stack"] = {
        name: [*tables["flight_stack"][name], *column] for name, column in threads["flight_stack"].items()
    }
    return tables, gaps


def read_threads() -> list[ThreadStack]:
    """Return where all threads of the process are, without zprof's own."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    return [
        ThreadStack(
            thread=ident, name=names.get(ident, ""), is_main=ident == main, frames=_read_frames(frame)
        )
        for ident, frame in sys._current_frames().items()
        if not names.get(ident, "").startswith(_OWN_THREADS)
    ]


def make_group_columns(groups: Sequence[GroupProgress]) -> Columns:
    """Return the table ``flight_group`` of a rank whose flight recorder cannot be read."""
    return {
        "group": [group.name for group in groups],
        "description": [group.description for group in groups],
        "ranks": [",".join(map(str, group.ranks)) for group in groups],
        "last_enqueued": [group.enqueued for group in groups],
        "last_completed": [group.completed for group in groups],
    }


def _read_flight_tables() -> tuple[dict[str, Columns], list[Gap]]:
    """Return the tables of the flight recorder; without one, the groups alone."""
    from zprof.collectors.read.flight_recorder.convert import convert_dump

    try:
        groups = list_process_groups()
        content = dump_flight_recorder()
        if content is None:
            raise ValueError("this torch has no flight recorder for the backend")
        dump = _describe_groups(pickle.loads(content), groups)
        converted = convert_dump(dump)
    except Exception as error:
        gap = make_gap("flight_recorder_missing", error=first_line(error))
        from zprof.run.schema import TABLES

        empty: dict[str, Columns] = {
            name: {column: [] for column in TABLES[name].names} for name in ("flight", "flight_stack")
        }
        return {**empty, "flight_group": make_group_columns(list_group_progress())}, [gap]
    tables: dict[str, Columns] = {
        str(name): {column: _as_list(values) for column, values in columns.items()}
        for name, columns in converted.tables.items()
    }
    return tables, list(converted.gaps)


def _describe_groups(dump: dict[str, Any], groups: Sequence[ProcessGroupFacts]) -> dict[str, Any]:
    """Return a dump with the groups of ``torch.distributed``: gloo writes neither their names nor ranks.

    gloo's numbers in ``pg_status`` count sends and receives too, those of its entries do not.
    """
    config = {
        group.name: {
            "name": group.name,
            "desc": group.description,
            "ranks": "[" + ", ".join(map(str, group.ranks)) + "]",
        }
        for group in groups
    }
    status = {int(number): dict(facts) for number, facts in (dump.get("pg_status") or {}).items()}
    entries = dump.get("entries") or ()
    for number, (enqueued, retired) in _find_last_sequences(entries).items():
        if number in status:
            status[number]["last_enqueued_collective"] = enqueued
            status[number]["last_completed_collective"] = retired
    # Whether the numbers of the dump count the groups of ``torch.distributed``.
    if all(
        (entry["pg_id"] < len(groups) and groups[entry["pg_id"]].name == entry["process_group"][0])
        for entry in entries
    ):
        # A group has a status from its first operation on.
        unused = {f"last_{state}_collective": -1 for state in ("enqueued", "started", "completed")}
        status = {number: status.get(number, unused) for number in range(len(groups))} | status
    return {**dump, "pg_config": config, "pg_status": status}


def _find_last_sequences(entries: Sequence[Mapping[str, Any]]) -> dict[int, tuple[int, int]]:
    """Return the last collective of each of gloo's groups that was entered, and that has ended."""
    last: dict[int, tuple[int, int]] = {}
    for entry in entries:
        if not str(entry.get("profiling_name", "")).startswith("gloo:") or entry.get("is_p2p"):
            continue
        enqueued, retired = last.get(entry["pg_id"], (-1, -1))
        sequence = int(entry["collective_seq_id"])
        if entry.get("retired"):
            retired = max(retired, sequence)
        last[entry["pg_id"]] = max(enqueued, sequence), retired
    return last


def _read_frames(frame: FrameType | None) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    while frame is not None and len(frames) < _MAX_FRAMES:
        frames.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(frames)


def _as_list(values: Any) -> list[Any]:
    """Return a column as a list: of Arrow, of numpy, or a list already."""
    convert = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    return list(values) if convert is None else list(convert())
