"""Record a program that does not know zprof, from its first parameter to the end of the schedule.

    arm -> (first parameter: init window) -> first step over: folder, init tables -> cycle known: Recorder

A fault in here ends the recording, with a warning; it never reaches the program.
"""

import atexit
import multiprocessing.util
import os
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.collectors.base import FaultGuard
from zprof.collectors.devices.watch import DeviceWatch
from zprof.collectors.identity import RECORDING_VARIABLE, OutsideRecording, identify_rank
from zprof.collectors.program.discovery import Optimizer, Trained, find_idle_optimizers, find_trained
from zprof.collectors.program.init_window import InitWindow
from zprof.collectors.program.steps import OptimizerSteps, StepCycle
from zprof.collectors.schedule import MemoryMode, Schedule, Window
from zprof.model.gaps import Gap, GapKind
from zprof.model.training import TrainingFacts

if TYPE_CHECKING:
    from zprof.collectors.recorder import Collectors, Recorder


#: Steps for which the schedule waits for an optimizer that exists and has not stepped yet.
MAX_STEPS_TO_WAIT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """Plan of a recording from outside. ``may_record`` is called once, with this process's rank.

    ``say`` is called with a line that says why nothing was recorded.
    """

    path: Path
    schedule: Schedule
    memory_mode: MemoryMode = MemoryMode.FULL
    init: bool = True
    may_record: Callable[[int], bool] = lambda rank: True
    say: Callable[[str], None] = lambda note: None


class ProgramRecording(OutsideRecording):
    """The recording of a program from outside.

    Create it after torch has been imported and before the program creates an optimizer.
    """

    def __init__(self, plan: RecordingPlan) -> None:
        self._plan = plan
        self._guard = FaultGuard()
        self._cycle = StepCycle()
        self._steps = OptimizerSteps(self._before, self._after, self._after_backward)
        self._init = InitWindow() if plan.init and plan.memory_mode is MemoryMode.FULL else None
        self._devices = DeviceWatch()  # from the start: a group's first collective comes before the windows
        self._seen: dict[int, weakref.ref[Optimizer]] = {}
        self._recorder: Recorder | None = None
        self._began = False
        self._patience = MAX_STEPS_TO_WAIT
        self._process_id = 0
        self._is_fork = False

    def arm(self) -> None:
        """Start watching the program."""
        self._process_id = os.getpid()
        os.environ[RECORDING_VARIABLE] = str(self._process_id)
        self._guard.run("program recording", self._steps.install)
        if self._init is not None:
            self._guard.run("init window", self._init.arm)
        self._guard.run("device counters", self._devices.start)
        atexit.register(self.finish)
        forked = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (call := forked()) and call())

    def finish(self) -> None:
        """Write what is not written yet and remove everything, at the program's exit."""
        if self._process_id == os.getpid():
            self._end()

    def stand_down(self) -> None:
        """Stop recording, because the program records itself."""
        self._plan.say("the program records itself with zprof.record(): its own recording is the only one")
        self._end()

    def _before(self, optimizer: Optimizer) -> None:
        self._guard.run("program recording", lambda: self._see(optimizer))

    def _see(self, optimizer: Optimizer) -> None:
        if id(optimizer) in self._seen:
            return
        self._seen[id(optimizer)] = weakref.ref(optimizer)
        if self._recorder is None and self._init is not None:
            self._init.know(self._find())

    def _after(self, optimizer: Hashable) -> None:
        if self._process_id == os.getpid() and not self._guard.succeeds(
            "program recording", lambda: self._stepped(optimizer)
        ):
            self._guard.run("program recording", self._end)

    def _after_backward(self) -> None:
        if self._init is not None:
            self._guard.run("init window", self._init.check)

    def _stepped(self, optimizer: Hashable) -> None:
        step_over = self._cycle.ended(optimizer)
        recorder = self._recorder = self._recorder or self._open()
        if recorder is None:
            self._end()
        elif self._began and step_over:
            recorder.step()
        elif self._cycle.repeated and step_over and not self._waits():
            self._cycle.wait_pending()
            self._began = True
            if (trained := self._find()).by_size:
                recorder.add({}, [_make_model_by_size_gap(trained)])
            recorder.begin(self._cycle.closings)  # last: slow work here must not be part of a recorded step
        if recorder is not None and not recorder.active:
            self._end()

    def _open(self) -> "Recorder | None":
        """Create the recorder after the first step and write what came before; None to record nothing."""
        from zprof.collectors.recorder import Recorder

        if self._init is not None:
            self._init.close()
        identity = identify_rank()
        if not self._plan.may_record(identity.rank):
            return None
        recorder = Recorder(
            self._plan.path,
            self._plan.schedule,
            self._facts,
            self._collectors(),
            memory_mode=self._plan.memory_mode,
            identity=lambda: identity,
            devices=self._devices,
        )
        if not recorder.open():
            self._plan.say(f"nothing was recorded as rank {identity.rank}: {recorder.why_not()}")
            return None
        atexit.unregister(self.finish)
        atexit.register(self.finish)  # to run before the recorder's own handler, which knows less
        if self._is_fork:
            multiprocessing.util.Finalize(None, self.finish, exitpriority=0)  # a fork exits without atexit
            recorder.add({}, [_FORKED_GAP])
        if self._init is not None:
            recorder.add({**self._init.tables(), "mark": self._init.marks()}, self._init.gaps())
        self._init = None
        return recorder

    def _collectors(self) -> "Collectors":
        from zprof.collectors.kineto.collector import KinetoCollector
        from zprof.collectors.memory.collector import MemoryCollector

        def memory() -> MemoryCollector:
            trained = self._find()
            return MemoryCollector(trained.model(), trained.optimizers, self._plan.memory_mode)

        return {Window.MEMORY: memory, Window.TIME: KinetoCollector}

    def _facts(self) -> TrainingFacts:
        from zprof.collectors.training import detect_training

        trained = self._find()
        return detect_training(trained.model(), trained.optimizers)

    def _find(self) -> Trained:
        """Find what is trained, each time anew: to keep the program's objects would keep them alive."""
        return find_trained(self._stepped_ones())

    def _stepped_ones(self) -> list[Optimizer]:
        return [optimizer for reference in self._seen.values() if (optimizer := reference()) is not None]

    def _waits(self) -> bool:
        """Return whether an optimizer that may belong to the cycle has not stepped yet."""
        self._patience -= 1
        return self._patience > 0 and bool(find_idle_optimizers(self._stepped_ones()))

    def _end(self) -> None:
        self._process_id = 0
        os.environ.pop(RECORDING_VARIABLE, None)
        atexit.unregister(self.finish)
        self._guard.run("program recording", self._steps.remove)
        if self._init is not None:
            self._init.close()
        recorder = self._recorder
        if recorder is not None and recorder.active:
            recorder.add({}, self._guard.gaps)
            recorder.close("failed", steps=self._cycle.closings)
        self._guard.run("device counters", self._devices.stop)

    def _forked(self) -> None:
        """Leave the parent's recording alone; before its first step, watch this process as a new one.

        A launcher that forks its ranks (a notebook's) imports torch and never trains itself.
        """
        if not self._process_id:
            return
        if self._init is not None:
            self._init.abandon()
            self._init = None
        if self._recorder is not None:
            self._steps.remove()
            self._recorder.abandon()
            return
        self._process_id = os.getpid()
        os.environ[RECORDING_VARIABLE] = str(self._process_id)
        self._is_fork = True
        self._devices = DeviceWatch()  # the parent's thread is not in this process


_FORKED_GAP = Gap(
    kind=GapKind.MEMORY_PART,
    what="memory before the first step",
    reason="this process was forked from one that had begun to make the model: what came before is not seen",
    remedy="start the ranks with torchrun or by spawn to see it",
)


def _make_model_by_size_gap(trained: Trained) -> Gap:
    names = ", ".join(type(model).__name__ for model in trained.models)
    return Gap(
        kind=GapKind.RECORDING,
        what="which model is trained",
        reason=f"no module holds what is optimized; the largest one was taken: {names}",
        remedy="call zprof.record(model=…) in the program",
    )
