"""Record a piece of training in this process.

That is a function without arguments, which is one step, or a function of ``record``:
:func:`zprof.record` with its path and steps already set.
"""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zprof.model.errors import BadInput, MissingData

if TYPE_CHECKING:
    from zprof.collectors.recorder import Recorder
    from zprof.collectors.schedule import Schedule


#: Same name as in the recorder, which cannot be imported without torch.
_OFF_SWITCH = "ZPROF"
_AS_FUNCTION = "def train(record): ... with record(model=model) as recording: ... recording.step()"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRequest:
    """What to record, how and where."""

    path: Path
    steps: "Schedule"
    memory_mode: str = "full"


def default_steps() -> "Schedule":
    """Return the steps of :func:`zprof.steps`."""
    from zprof.collectors.schedule import Schedule

    return Schedule()


def refuse_turned_off() -> None:
    """Raise before starting processes that would not record.

    Raises:
        MissingData: recording is turned off.
    """
    if os.environ.get(_OFF_SWITCH) == "0":
        raise MissingData("zprof_run: recording is turned off by ZPROF=0", hint="unset it")


def make_recorder(wanted: RecordingRequest) -> "Callable[..., Recorder]":
    """Return :func:`zprof.record` with path, steps and memory mode set.

    Raises:
        MissingData: torch is not installed.
    """
    try:
        from zprof.collectors.recorder import record
    except ModuleNotFoundError as error:
        raise MissingData(
            f"zprof_run: recording needs {error.name}, which is not installed", hint="pip install torch"
        ) from None
    return partial(record, wanted.path, steps=wanted.steps, memory_mode=wanted.memory_mode)


def record_here(train: Callable[..., object], wanted: RecordingRequest, **objects: Any) -> None:
    """Run ``train`` and record it; its own exceptions pass through.

    Args:
        train: one step, or the whole training.
        wanted: the output path, and which steps.
        objects: model, optimizer and training of a step, as :func:`zprof.record` takes them.

    Raises:
        BadInput: it can be called neither way, or gets objects with ``record``.
        MissingData: there is nothing to record with.
    """
    __tracebackhide__ = True  # show what the test's own code raises as if it had called it itself
    whole = takes_record(train)
    if whole and objects:
        raise BadInput(f"zprof_run: {_join_names(objects)} cannot be given with a function that has record",
                       hint=f"give it to record: {_AS_FUNCTION}")  # fmt: skip
    record = make_recorder(wanted)
    if whole:
        train(record)
        return
    with record(**objects) as recording:
        for _ in range(wanted.steps.total):
            train()
            recording.step()


def takes_record(train: Callable[..., object]) -> bool:
    """Return whether ``train`` is a whole training instead of a step.

    Raises:
        BadInput: it is neither.
    """
    if not callable(train):
        raise BadInput("zprof_run: its first argument is no function", hint="zprof_run(step, model=model)")
    needed = _count_required_arguments(train)
    if needed > 1:
        raise BadInput(
            f"zprof_run: a function of {needed} arguments",
            hint=f"functools.partial sets others than record: {_AS_FUNCTION}",
        )
    return needed == 1


def _count_required_arguments(train: Callable[..., object]) -> int:
    """Return the number of arguments that a call must give."""
    try:
        parameters = inspect.signature(train).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.default is parameter.empty and parameter.kind in positional for parameter in parameters
    )


def _join_names(objects: dict[str, Any]) -> str:
    return ", ".join(objects)
