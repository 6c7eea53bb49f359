"""What the Plan screen shows of one change: the answer, as far as there is one."""

from dataclasses import dataclass

from zprof.model.errors import ZprofError
from zprof.model.gaps import Gap
from zprof.model.planning.whatif import Calibration, Change, Outlook, Predicted, Prediction
from zprof.tui.plan.predicting import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A change, its knobs in words, and what the model says; ``answer`` is None while it is asked.

    ``words`` is empty where nothing is changed.
    """

    change: Change
    words: str
    answer: Answer | None = None

    @property
    def outlook(self) -> Outlook | None:
        """What is predicted; None while it is asked, and where it could not be."""
        return self.answer if isinstance(self.answer, Outlook) else None

    @property
    def place(self) -> int:
        """Of the prediction in the outlook, which is of this change alone; -1 where there is none."""
        return 0 if self.outlook and self.outlook.predictions else -1

    @property
    def prediction(self) -> Prediction | None:
        """Of this change."""
        return self.outlook.predictions[self.place] if self.outlook and self.place >= 0 else None

    @property
    def calibration(self) -> Calibration | None:
        """What the model took from the run."""
        return self.outlook.calibration if self.outlook else None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What is not predicted, and why."""
        if isinstance(self.answer, ZprofError):
            return (Gap(what="prediction", reason=str(self.answer), remedy=self.answer.hint),)
        return self.outlook.gaps if self.outlook else ()

    @property
    def is_whole(self) -> bool:
        """Whether both step and peak are predicted: then gaps are what the ranges are wide for."""
        return self.prediction is not None and bool(self.prediction.step and self.prediction.memory)

    @property
    def said(self) -> str:
        """The change, as the model says it, else the knobs."""
        return (self.prediction.words if self.prediction else "") or self.words


def named(entries: tuple[Predicted, ...], name: str) -> int:
    """The place of a term or tenant; -1 where it is not predicted.  Tenants may have their unit."""
    names = [entry.name for entry in entries]
    return next((names.index(one) for one in (name, f"{name}_bytes") if one in names), -1)


def gap_said(gap: Gap) -> str:
    """In one line, with its remedy."""
    remedy = f"; what helps: {gap.remedy}" if gap.remedy else ""
    return f"{gap.what}: {gap.reason}{remedy}"
