"""Record training code in this process.

The code is a function without arguments, which is one step, or a function that takes ``record``, which is
:func:`zprof.record` with its path and steps already set.
"""

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from zprof.model.errors import BadInput, MissingData

if TYPE_CHECKING:
    from zprof.collectors.recorder import Recorder
    from zprof.collectors.schedule import RecordingSchedule


#: The variable that the recorder reads, repeated because the recorder cannot be imported without torch.
_OFF_SWITCH = "ZPROF"
_AS_FUNCTION = "def train(record): ... with record(model=model) as recording: ... recording.step()"


class RecordingRequest(Struct, frozen=True, kw_only=True):
    """Path, steps and memory mode of a recording."""

    path: Path
    steps: "RecordingSchedule"
    memory_mode: str = "full"


def default_steps() -> "RecordingSchedule":
    """Return the default of :func:`zprof.steps`."""
    from zprof.collectors.schedule import RecordingSchedule

    return RecordingSchedule()


def refuse_turned_off() -> None:
    """Check that recording is not turned off, before processes are started.

    Raises:
        MissingData: recording is turned off.
    """
    if os.environ.get(_OFF_SWITCH) == "0":
        raise MissingData("zprof_run: recording is turned off by ZPROF=0", hint="unset it")


def make_recorder(request: RecordingRequest) -> "Callable[..., Recorder]":
    """Return :func:`zprof.record` with path, steps and memory mode set."""
    from zprof.collectors.recorder import record

    return partial(record, request.path, steps=request.steps, memory_mode=request.memory_mode)


def record_here(train: Callable[..., object], request: RecordingRequest, **objects: Any) -> None:
    """Run ``train`` and record it; its own exceptions pass through.

    Args:
        train: one step, or the entire training.
        request: the output path and the steps.
        objects: ``model``, ``optimizer`` and ``training`` of a step, as in :func:`zprof.record`.

    Raises:
        BadInput: ``train`` has a wrong signature, or takes ``record`` and ``objects`` are given.
    """
    __tracebackhide__ = True  # show exceptions of the test's own code without zprof's frames
    is_entire_training = takes_record(train)
    if is_entire_training and objects:
        raise BadInput(f"zprof_run: {', '.join(objects)} cannot be given with a function that takes record",
                       hint=f"pass it to record: {_AS_FUNCTION}")  # fmt: skip
    record = make_recorder(request)
    if is_entire_training:
        train(record)
        return
    with record(**objects) as recording:
        for _ in range(request.steps.total):
            train()
            recording.step()


def takes_record(train: Callable[..., object]) -> bool:
    """Return True if ``train`` is an entire training instead of a step.

    Raises:
        BadInput: it is neither.
    """
    if not callable(train):
        raise BadInput("zprof_run: the first argument is not a function", hint="zprof_run(step, model=model)")
    try:
        parameters = list(inspect.signature(train).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(
        parameter.default is parameter.empty and parameter.kind in positional for parameter in parameters
    )
    if required > 1:
        raise BadInput(
            f"zprof_run: the function has {required} required arguments; it can take only record",
            hint=f"bind the others with functools.partial: {_AS_FUNCTION}",
        )
    return required == 1
