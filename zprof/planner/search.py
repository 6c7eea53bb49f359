"""Search the layouts of a job on a number of devices: what fits, and which of them is fastest.

Estimates take a fraction of a millisecond, so thousands of layouts are compared. Layouts that cannot win are
not estimated: more recomputation than needed, a micro-batch above one that is too large or not faster, more
context parallelism than needed, and a pipeline schedule that would lose even without a bubble.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from zprof.model.layout import Framework, Layout, PipelineSchedule, Recompute
from zprof.model.machines import Hardware
from zprof.model.plan import Estimate, Fit, Search
from zprof.model.transformer import Transformer
from zprof.planner.legal_layouts import list_layouts, list_virtual_degrees

Estimator = Callable[[Layout], Estimate]

FRAMEWORKS = (Framework.FSDP2, Framework.MEGATRON, Framework.DEEPSPEED, Framework.DDP)
#: Estimates of a search; with half a millisecond for an estimate it takes less than ten seconds.
MAX_TRIED = 16_000
#: Estimates of the suggestions that each plan has.
MAX_SUGGESTED_TRIED = 800
MAX_SUGGESTIONS = 6
#: Steps that differ by less than this share count as equally fast: predictions are not more exact.
_EQUAL_RATIO = 0.01
_SHORT_PIPELINE = 8


def search_layouts(
    model: Transformer,
    hardware: Hardware,
    base: Layout,
    *,
    devices: int,
    global_batch: int,
    estimate: Estimator,
    frameworks: Sequence[Framework] = FRAMEWORKS,
) -> Search:
    """Return the Pareto front of step time and memory over all legal layouts.

    ``base``: sequence, precision, optimizer, kernels and buffers of all layouts. ``estimate``: estimates a
    layout of this model on this hardware. If nothing fits, layouts with offload to host memory are tried too.
    """
    trials = Trials(model, estimate, MAX_TRIED)
    for offload in (False, True):
        layouts = list_layouts(
            model,
            hardware,
            base,
            devices=devices,
            global_batch=global_batch,
            frameworks=frameworks,
            offload=offload,
        )
        for layout in layouts:
            trials.try_batches(layout)
        trials.try_schedules()
        if trials.fitting:
            break
    front = trials.front
    return Search(
        devices=devices,
        global_batch=global_batch,
        sequence=base.sequence,
        tried=trials.tried,
        left_out=trials.left_out,
        fitting=len(trials.fitting),
        front=front,
        best=_choose_best(front),
        smallest=trials.smallest,
    )


def suggest_layouts(
    model: Transformer,
    hardware: Hardware,
    base: Layout,
    *,
    devices: int,
    global_batch: int,
    estimate: Estimator,
    frameworks: Sequence[Framework] = FRAMEWORKS,
) -> tuple[Estimate, ...]:
    """Return the fastest fitting layout of each scheme, fastest first, from a few usual degrees.

    Layouts that are tight come after layouts that fit.
    """
    trials = Trials(model, estimate, MAX_SUGGESTED_TRIED)
    layouts = list(
        list_layouts(model, hardware, base, devices=devices, global_batch=global_batch, frameworks=frameworks)
    )
    experts = max((layout.degrees.expert for layout in layouts), default=1)
    for layout in layouts:
        degrees = layout.degrees
        # Most jobs run with powers of two or short pipelines, and the experts in a node or over all ranks.
        is_short = degrees.pipeline <= _SHORT_PIPELINE or _is_power(degrees.pipeline)
        is_usual = _is_power(degrees.tensor) and is_short and degrees.context == 1
        if is_usual and degrees.expert in (1, hardware.devices_per_node, experts):
            trials.try_batches(layout)
    fastest: dict[tuple[object, ...], Estimate] = {}
    for found in sorted(trials.fitting, key=_rank):
        fastest.setdefault(_get_scheme(found.layout), found)
    return tuple(fastest.values())[:MAX_SUGGESTIONS]


class Trials:
    """Estimates of layouts, with the layouts left out that cannot be on the front.

    ``fitting``: estimates that fit, tight ones too; ``front``: those that no other one beats in both time and
    memory, fastest first. ``smallest``: the estimate with the least memory. ``left_out``: layouts beyond the
    limit of estimates.
    """

    def __init__(self, model: Transformer, estimate: Estimator, max_tried: int) -> None:
        self.fitting: list[Estimate] = []
        self.front: tuple[Estimate, ...] = ()
        self.smallest: Estimate | None = None
        self.tried = self.left_out = 0
        self._model, self._estimate, self._max_tried = model, estimate, max_tried
        self._roomy: set[Layout] = set()

    def try_batches(self, layout: Layout) -> None:
        """Try each micro-batch, with as much recomputation as it needs, until it is too large or slower.

        ``layout``: with a micro-batch of one sample and all micro-batches of a step.
        """
        without_context = _drop_context(layout)
        if without_context in self._roomy:
            return  # a smaller context degree already fits without recomputation
        kinds, fastest_ns = _list_recompute(layout), None
        for micro_batch in _list_powers(layout.micro_batches):
            batched = replace(
                layout, micro_batch=micro_batch, micro_batches=layout.micro_batches // micro_batch
            )
            kinds, found = self._try_recompute(batched, kinds)
            if found and found[0].fit is Fit.FITS and found[0].layout.recompute is Recompute.NONE:
                self._roomy.add(without_context)
            step_ns = min((each.step.wall_ns for each in found), default=None)
            if step_ns is None or (fastest_ns is not None and step_ns >= fastest_ns):
                return
            fastest_ns = step_ns

    def _try_recompute(
        self, layout: Layout, kinds: Sequence[Recompute]
    ) -> tuple[Sequence[Recompute], list[Estimate]]:
        """Return the kinds of recomputation that a larger micro-batch may fit with, and what fits."""
        found, possible = [], list(kinds)
        for kind in kinds:
            estimate = self.try_layout(replace(layout, recompute=kind))
            if estimate is None or not _is_possible(estimate):
                possible.remove(kind)
                continue
            found.append(estimate)
            if estimate.fit is Fit.FITS:
                break
        return possible, found

    def try_schedules(self) -> None:
        """Try interleaved schedules of pipelines that would win without their bubble.

        Zero-bubble schedules are planned on request: Megatron-LM's own schedules are 1F1B and interleaved.
        """
        pipelines = [found for found in self.fitting if found.layout.degrees.pipeline > 1]
        for found in sorted(pipelines, key=lambda each: each.step.wall_ns - each.step.idle_ns):
            without_bubble_ns = found.step.wall_ns - found.step.idle_ns
            for layout in _list_schedules(self._model, found.layout):
                if not self._is_beaten(without_bubble_ns, found.peak_bytes):
                    self.try_layout(layout)

    def try_layout(self, layout: Layout) -> Estimate | None:
        """Return the estimate of a layout, None beyond the limit of estimates."""
        if self.tried == self._max_tried:
            self.left_out += 1
            return None
        self.tried += 1
        estimate = self._estimate(layout)
        if self.smallest is None or estimate.peak_bytes < self.smallest.peak_bytes:
            self.smallest = estimate
        if _is_possible(estimate):
            self.fitting.append(estimate)
            if not self._is_beaten(estimate.step.wall_ns, estimate.peak_bytes):
                self.front = find_front((*self.front, estimate))
        return estimate

    def _is_beaten(self, wall_ns: int, peak_bytes: int) -> bool:
        """Return True if a layout of the front needs neither more time nor more memory."""
        return any(each.step.wall_ns <= wall_ns and each.peak_bytes <= peak_bytes for each in self.front)


def find_front(estimates: Iterable[Estimate]) -> tuple[Estimate, ...]:
    """Return the estimates that no other one beats in both time and memory, fastest first."""
    front: list[Estimate] = []
    for estimate in sorted(estimates, key=lambda each: (each.step.wall_ns, each.peak_bytes)):
        if not front or estimate.peak_bytes < front[-1].peak_bytes:
            front.append(estimate)
    return tuple(front)


def _is_possible(estimate: Estimate) -> bool:
    """Return True if the peak is at most the memory of the device.

    A plan calls a peak too large only beyond the usual error of the prediction; nobody would choose it.
    """
    return estimate.left_bytes + estimate.reserve_bytes >= 0


def _choose_best(front: Sequence[Estimate]) -> Estimate | None:
    """Return the smallest of the fastest layouts that fit with the reserve, else the fastest."""
    fitting = [found for found in front if found.fit is Fit.FITS]
    if not fitting:
        return front[0] if front else None
    limit_ns = fitting[0].step.wall_ns * (1 + _EQUAL_RATIO)
    return min(
        (found for found in fitting if found.step.wall_ns <= limit_ns), key=lambda each: each.peak_bytes
    )


def _rank(estimate: Estimate) -> tuple[bool, int, int]:
    return estimate.fit is Fit.TIGHT, estimate.step.wall_ns, estimate.peak_bytes


def _get_scheme(layout: Layout) -> tuple[object, ...]:
    """Return what distinguishes suggestions: the framework, the stage, and which axes are used."""
    degrees = layout.degrees
    return layout.framework, layout.stage, degrees.tensor > 1, degrees.pipeline > 1


def _list_recompute(layout: Layout) -> Sequence[Recompute]:
    """Return the kinds of recomputation, fastest first; DDP and DeepSpeed recompute whole layers."""
    if layout.framework in (Framework.DDP, Framework.DEEPSPEED):
        return (Recompute.NONE, Recompute.FULL)
    return tuple(Recompute)


def _list_schedules(model: Transformer, layout: Layout) -> Iterator[Layout]:
    for virtual in list_virtual_degrees(model, layout):
        degrees = replace(layout.degrees, virtual=virtual)
        yield replace(layout, schedule=PipelineSchedule.INTERLEAVED, degrees=degrees)


def _list_powers(number: int) -> Iterator[int]:
    """Yield the powers of two that divide a number."""
    power = 1
    while number % power == 0:
        yield power
        power *= 2


def _is_power(number: int) -> bool:
    """Return True for a power of two."""
    return number & (number - 1) == 0


def _drop_context(layout: Layout) -> Layout:
    """Return the layout without what differs between context degrees, to look it up."""
    is_hybrid = layout.degrees.replicas > 1
    degrees = replace(layout.degrees, data=1, context=1, shard=2 if is_hybrid else 1)
    return replace(layout, degrees=degrees, micro_batches=1)
