"""Build the gaps of a recording that did not go as planned: errors, skipped updates, too few steps."""

from collections.abc import Sequence

from zprof.collectors.record.base import first_line
from zprof.model.gaps import Gap, GapKind

#: Step numbers that a gap lists.
_MAX_LISTED = 8
NO_MEMORY_AT_STALL = Gap(
    kind=GapKind.MEMORY_PART,
    what="memory by tenant when the rank made no progress",
    reason="no step of the memory window had ended before",
    remedy="record memory earlier: --skip-steps 2 --memory-steps 2",
)


def make_error_gap(error: BaseException, step: int | None) -> Gap:
    """Return the gap of a program that ended with an error; ``step`` is None after the recorded steps."""
    when = "after its recorded steps" if step is None else f"in step {step}"
    is_interrupt = isinstance(error, KeyboardInterrupt)
    name = "an interrupt" if is_interrupt else f"{type(error).__name__}: {first_line(error)}"
    return Gap(
        kind=GapKind.PROGRAM_FAILED,
        what="end of the program",
        step=step,
        detail="Ctrl-C" if is_interrupt else type(error).__name__,
        reason=f"the program ended {when} with {name}",
        remedy="the steps before are valid; see the program's traceback",
    )


def list_skipped_gaps(steps: Sequence[int]) -> list[Gap]:
    """Return a gap if the updates of some steps were skipped."""
    if not steps:
        return []
    return [
        Gap(
            kind=GapKind.SKIPPED_STEPS,
            what=f"update of step {_format_steps(steps)}",
            reason="the gradients overflowed, and the loss scale was lowered instead of updating the model",
            remedy="record later steps (--skip-steps), after the loss scale has settled",
        )
    ]


def list_uncertain_gaps(steps: Sequence[int]) -> list[Gap]:
    """Return a gap if some steps hold several of the program's, because their end was seen too late."""
    if not steps:
        return []
    return [
        Gap(
            kind=GapKind.STEP_BOUNDARIES,
            what=f"end of step {_format_steps(steps)}",
            reason="the optimizer that ended steps before no longer stepped: the step holds several updates",
            remedy="record a part of the program in which the same optimizers step (--skip-steps)",
        )
    ]


def list_replaced_gaps(steps: Sequence[int]) -> list[Gap]:
    """Return a gap if an optimizer took the place of another within the recorded steps."""
    if not steps:
        return []
    return [
        Gap(
            kind=GapKind.STEPS,
            what=f"steps before step {_format_steps(steps)}",
            reason="they are of another optimizer, as those of a learning-rate finder",
            remedy=f"record only later steps: --skip-steps {steps[-1]}",
        )
    ]


def _format_steps(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:_MAX_LISTED])) + (" …" if len(steps) > _MAX_LISTED else "")


def make_cut_short_gap(steps: int, scheduled: int) -> Gap:
    """Return the gap of a program that ended before its schedule."""
    return Gap(
        kind=GapKind.RECORDING_CUT_SHORT,
        what="recording cut short",
        reason=f"the program ended after {steps} of {scheduled} scheduled steps",
        remedy="let the program run longer, or record fewer steps: zprof.steps(skip=…, memory=…, time=…), or "
        "zprof record --skip-steps … --memory-steps … --time-steps …",
    )
