"""Predict what a fix saves: the step played as it is, and played with one thing changed.

    gain   = play(step) - play(edit(step))          one gain for each way in which the fix may turn out
    saving = least gain * (1 - 0.10) - 0.002 step  ..  largest gain * (1 + 0.20) + 0.002 step

The two ends do not rest on the same error. A gain is too large if the changed step runs into something that
the recording did not show (a dependency, a queue, a slower kernel); it is too small by what the cause costs
beside the step's own tasks (the host time of a dropped collective, kernels that ran beside it and slowed
down). On 178 planted causes of simulated jobs whose fixed step is known, the truth was 0.96 to 1.12 times
the gain for 90 % of them, and 0.65 to 1.36 times for 98 %; the rest of both ends is room for what simulators
leave out.

The step is played from its kernels where their launches were recorded, else from the spans of its threads.
What an engine would schedule otherwise is no edit of spans: there the units are played
(:mod:`zprof.step.from_units`), and the gain is that of their model.
"""

from functools import cached_property

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.gaps import Gap
from zprof.model.plan import Change
from zprof.step.from_host_spans import build_host_graph
from zprof.step.from_kernels import build_graph
from zprof.step.from_units.prediction import predict_gain_ns
from zprof.step.message_sizes import ResizedMessages
from zprof.step.play import ReplayDeadlock, infer_link_sharing, play_graph
from zprof.step.tasks import Floats, Graph

#: By how much a gain may be too large, and too small.
_LOWER_ERROR_RATIO, _UPPER_ERROR_RATIO = 0.10, 0.20
#: Minimum error of both ends, as a share of the step.
_STEP_ERROR_RATIO = 0.002


def widen_gains(lowest_ns: float, highest_ns: float, step_ns: float) -> tuple[float, float]:
    """Return the range of a saving from the lowest and the highest gain: never below 0."""
    slack = _STEP_ERROR_RATIO * step_ns
    low = lowest_ns * (1 - _LOWER_ERROR_RATIO) - slack
    return max(0.0, low), max(0.0, highest_ns * (1 + _UPPER_ERROR_RATIO) + slack)


class PlayedStep(Struct, frozen=True, kw_only=True, dict=True):
    """The step of a run, built and played on first access."""

    analysis: RunAnalysis

    @cached_property
    def _played(self) -> tuple[Graph, Floats] | None:
        """The step and its ends, None if the recording does not allow to play it.

        If wrongly matched collectives cause a deadlock, each rank is played by itself.
        """
        for build in (build_graph, build_host_graph):
            for apart in (False, True):
                graph = build(self.analysis, apart=apart)
                if isinstance(graph, Gap):
                    break
                try:
                    shared = infer_link_sharing(graph, self.analysis.collectives)
                    return shared, play_graph(shared)
                except ReplayDeadlock:
                    continue
        return None

    @property
    def graph(self) -> Graph | None:
        """The measured step, None if the recording does not allow to play it."""
        return self._played[0] if self._played else None

    @cached_property
    def sizes(self) -> ResizedMessages:
        """The sizes of the step's messages; to be read only if the step can be played."""
        assert self.graph is not None
        return ResizedMessages(self.analysis, self.graph)

    @property
    def has_kernels(self) -> bool:
        """True if the step is played from the kernels of a device, with the calls that launch them."""
        return self.graph is not None and self.graph.has_kernels

    @property
    def base_ns(self) -> Floats | None:
        """End of each step of each rank as played, None if it cannot be."""
        return self._played[1] if self._played else None

    @property
    def step_ns(self) -> float:
        """Time of a step as played, in ns; 0 if it cannot be."""
        return _mean_step_ns(self.base_ns) if self.base_ns is not None else 0.0

    def gain_ns(self, changed: Graph) -> float | None:
        """Return by how much the changed step is shorter, None if it cannot be played."""
        if self.base_ns is None:
            return None
        try:
            return _mean_step_ns(self.base_ns) - _mean_step_ns(play_graph(changed))
        except ReplayDeadlock:
            return None

    def gain_of_change_ns(self, change: Change) -> float | None:
        """Return by how much the step with another schedule is shorter, None if its units are not known."""
        return predict_gain_ns(self.analysis, change)


def _mean_step_ns(ends: Floats) -> float:
    """Return the mean step time over the ranks, without the first step, which contains the start-up."""
    if ends.shape[1] == 1:
        return float(ends.mean())
    whole = float((ends[:, -1] - ends[:, 0]).mean())
    return whole / (int(ends.shape[1]) - 1)
