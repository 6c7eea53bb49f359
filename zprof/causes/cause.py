"""Define the record of a cause: its texts, and the functions that find and remove it.

A cause is one file of this folder, with one record::

    CAUSE = Cause(id="ZP504", name="data_loader", meaning="...", terms=(...), sentence="...", ...)

    @CAUSE.detect
    def detect(analysis, baseline):     # the signs of the cause in the recording
        return Signal(lost_ns=lost_ns, words={"lost": lost_ns}, facts=[make_fact("...", lost_ns)])

    @CAUSE.edit
    def load_without_wait(analysis, graph, finding):     # the measured step without it
        return [...]

The part common to all causes is in :mod:`zprof.diagnosis`: severity, saving
(``find_causes.price_finding``, which plays the step of :mod:`zprof.step.play`), claims, order.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from string import Formatter
from typing import Any

from msgspec import Struct, field

from zprof.analysis.analysis import Fact, RunAnalysis, Untested, make_fact, mean_wall_ns
from zprof.analysis.memory.largest_rank import LargestRank
from zprof.base.formatting import format_bytes, format_ns, format_percent, format_rate
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Confidence, Evidence, Finding, Severity, SourceLocation
from zprof.model.plan import Change
from zprof.model.quantities import Unit
from zprof.model.time import Time
from zprof.step.play import PlayedStep
from zprof.step.tasks import Graph

#: A cause is present if the gain exceeds this share of the step.
MIN_GAIN_RATIO = 0.015
#: Labels of facts that several causes report.
COMMON_EVIDENCE: Mapping[str, tuple[str, Unit]] = {
    "replayed_saving": ("reduction {of_step} time in a replay without it", Unit.NS),
    "share_of_step": ("{of_step}", Unit.RATIO),
    "exposed_part": ("exposed transfer {per_step}", Unit.NS),
    "exposed_time_per_step": ("their exposed time {per_step}", Unit.NS),
    "transfer_per_step": ("their transfer {per_step}", Unit.NS),
    "bytes_per_step": ("their bytes {per_step}", Unit.BYTES),
    "gathers_examined": ("all_gathers examined, all ranks and steps", Unit.COUNT),
    "all_gathers_per_step": ("all_gathers {per_step}", Unit.COUNT),
    "{kind}_count_per_step": ("{kind}s {per_step}", Unit.COUNT),
    "{kind}_bytes_median": ("bytes of one {kind}, median", Unit.BYTES),
    "{kind}_time_median": ("time of one {kind}, median", Unit.NS),
    "{kind}_latency": ("latency of one {kind}", Unit.NS),
    "latency_share": ("share of latency in message time", Unit.RATIO),
    "exposed_transfer_per_step": ("exposed transfer of these messages {per_step}", Unit.NS),
    "launch_time_per_step": ("launch time of these messages {per_step}", Unit.NS),
    "memory_to_keep_units": ("memory to keep all units", Unit.BYTES),
    "free_at_peak": ("free at the peak", Unit.BYTES),
    "peak_of_largest_rank": ("peak of the largest rank", Unit.BYTES),
    "gradients_at_peak": ("gradients at the peak", Unit.BYTES),
    "free_split_bytes": ("free parts of segments in use", Unit.BYTES),
    "awaiting_free": ("freed, but a stream still uses it", Unit.BYTES),
}


class Need(StrEnum):
    """What a run must have for a cause to be tested; otherwise the cause's file is not loaded."""

    #: Steps were timed.
    STEPS = "steps"
    #: Memory of a rank was recorded.
    MEMORY = "memory"
    #: Ranks compute on accelerators, which have streams and an allocator.
    DEVICE = "device"
    #: The job is stuck.
    HANG = "hang"


class Proof(StrEnum):
    """The kind of proof of a cause, which decides what lowers its confidence."""

    #: Times of events, on one rank or between ranks.
    TIMES = "times"
    #: Counts and bytes on each rank alone: lost events change nothing.
    COUNTS = "counts"
    #: Speeds of transfers or kernels, which on CPU ranks depend on the machine's load.
    SPEEDS = "speeds"


class Sign(StrEnum):
    """A sign of one cause that other causes produce as well."""

    LATE_RANK = "a rank is late"
    LATE_GATHERS = "gathers start late"
    FIRST_GATHER = "the first gather of a step is exposed"
    GATHERS_OF_BACKWARD = "the backward waits for gathers"
    SLOW_MESSAGES = "messages are slow"
    SHORT_MESSAGES = "messages are mostly latency"
    COPIES = "copies around collectives take long"
    HOST_WAITS = "the host waits for its device"
    LATE_LAUNCHES = "the host launches late"
    EXPOSED_ROLE = "the messages of one kind of parallelism are exposed"
    UNEQUAL_WORK = "ranks have unequal work"


class Signal(Struct, frozen=True, kw_only=True):
    """The evidence that a cause is present in a run.

    Attributes:
        confidence: How certain the cause is, regardless of its cost.
        words: Numbers and words for the record's sentence, by the names in its braces.
        facts: The numbers behind the claim, in the order in which they are read.
        lost_ns: Maximum cost per step: the saving ranges from 0 to this.
        saving_ns: Range of the saving per step, instead of ``lost_ns``.
        saving_bytes: Range by which the memory of the largest rank shrinks; None if it is not about memory.
        severity: None to rate the saving as a share of the step.
        sentence, disprove: Texts that replace those of the record; ``words`` fill the braces of the sentence.
        fix: What to do, instead of the record's fix; ``numbers`` fill its ``$names``.
        locate: Finds the line of the user's program; called only if the signal becomes a finding.
    """

    confidence: Confidence = Confidence.HIGH
    words: Mapping[str, object] = field(default_factory=dict)
    facts: Sequence[Fact] = ()
    lost_ns: float = 0.0
    saving_ns: tuple[float, float] | None = None
    saving_bytes: tuple[float, float] | None = None
    severity: Severity | None = None
    sentence: str = ""
    disprove: str = ""
    fix: Fix | str | None = None
    numbers: Mapping[str, object] = field(default_factory=dict)
    locate: Callable[[], SourceLocation | None] = lambda: None


class Observation(Signal, frozen=True, kw_only=True):
    """What the measured step shows of a cause; the cause is present if the steps without it are shorter.

    Attributes:
        changed: The steps without the cause, instead of those of its edit.
        min_ratio: Minimum gain as a share of the step; less is enough if the cause itself was seen.
        max_saving_ns: The largest possible saving per step.
        lowered_ratio: Share of the smallest gain that the fix may lose again.
        note_below_ratio: With a lower gain than this share of the step, the finding is a note.
        is_doubtful: Something else may cause the same signs: the finding is a note.
        max_confidence: The highest confidence that the recording supports.
        gain_rank: The rank that the gain is about, if it is a single rank.
    """

    changed: Sequence[Graph] | None = None
    min_ratio: float = MIN_GAIN_RATIO
    max_saving_ns: float = float("inf")
    lowered_ratio: float = 0.0
    note_below_ratio: float = 0.0
    is_doubtful: bool = False
    max_confidence: Confidence = Confidence.HIGH
    gain_rank: int | None = None


class Absent(Struct, frozen=True):
    """The measured step is not shorter without the cause. If it ``outranks_signs``, these are dropped."""


#: Find the signs of a cause in a run, compared with a baseline if given; None without signs.
Detect = Callable[[RunAnalysis, RunAnalysis | None], Signal | Untested | None]
#: Look at the measured step; None if it shows nothing about the cause.
Observe = Callable[[PlayedStep], Observation | Absent | None]
#: Return the step without the cause, once for each possible outcome of a fix; empty if there is nothing to
#: change. Returning the step itself means that the run has the fix already.
Edit = Callable[[RunAnalysis, Graph, Finding], Sequence[Graph]]
#: Return the changes to the engine's schedule, for ranks whose units are known but whose kernels are not.
Reschedule = Callable[[RunAnalysis, Finding], Sequence[Change]]


class Cause(Struct, kw_only=True, eq=False):
    """A cause of slow steps, of high memory use, or of a hang.

    Attributes:
        id: Stable id, never reused: ZP1xx measurement, ZP2xx memory, ZP3xx waiting, ZP4xx transfer and
            volume, ZP5xx host and device, ZP6xx hangs.
        name: Name in reports, and of the file.
        meaning: What the cause means for a run; the first line of its page.
        needs: What a run must have for the cause to be tested.
        terms: Ledger terms from which its saving is taken, in this order.
        other_rank_terms: Terms of other ranks that are the same loss: while ranks wait, the late one idles.
        taken_from: Key of the fact that has the part of the terms in which the saving lies.
        sign: Its sign, if other causes produce it too.
        produces: Signs of other causes that it also produces. If it is found above low confidence, it claims
            its time first, and the other cause gets the remainder.
        proof: Kind of its proof.
        adds: Key of the fact that has the time the recording itself adds to each step.
        is_priced_by_step: Counts or bytes prove the cause, and only the step without it shows its cost.
        is_stall: A host that runs ahead would hide it; a wait at the end of each step exposes it.
        idles_device: It leaves the device idle; while it is untested, idle time has no known cause.
        is_decisive: A run is "ok" only if this was tested.
        is_failure: It ended the program, so it is listed before all findings that save no time.
        is_risk: It puts a run at risk, regardless of how much a fix frees.
        outranks_signs: The measured step decides, not the signs in the recording.
        is_seen_in_spans: The measured step shows it on CPU ranks too, whose thread is recorded in spans.
        is_of_host: Its edit only shortens or drops times and waits of hosts.
        amounts: Keys of the facts that quantify it, regardless of its cost.
        sentence: The claim; ``{lost:ns}`` is a number of the signal in a unit, ``{per_step}`` one of the
            run's words (:class:`zprof.model.time.BasisWords`).
        observed: The claim if only the measured step shows the cause.
        evidence: Label and unit of each fact, by key; see ``COMMON_EVIDENCE``.
        fix: What to change, by framework and engine.
        action: What to do, in a few words, if the fix is code.
        disprove: An experiment that would show that it is not the cause.
    """

    id: str
    name: str
    meaning: str
    needs: tuple[Need, ...] = (Need.STEPS,)
    terms: tuple[str, ...] = ()
    other_rank_terms: tuple[str, ...] = ()
    taken_from: str | None = None
    sign: Sign | None = None
    produces: tuple[Sign, ...] = ()
    proof: Proof = Proof.TIMES
    adds: str | None = None
    is_priced_by_step: bool = False
    is_stall: bool = False
    idles_device: bool = False
    is_decisive: bool = False
    is_failure: bool = False
    is_risk: bool = False
    outranks_signs: bool = False
    is_seen_in_spans: bool = False
    is_of_host: bool = False
    amounts: tuple[str, ...] = ()
    sentence: str = ""
    observed: str = ""
    evidence: Mapping[str, tuple[str, Unit]] = field(default_factory=dict)
    fix: Fix | None = None
    action: str = ""
    disprove: str = ""
    find_signs: Detect | None = None
    look_at_step: Observe | None = None
    remove: Edit | None = None
    list_changes: Reschedule | None = None
    is_refuted: Callable[[PlayedStep], bool] | None = None
    is_note: Callable[[RunAnalysis], bool] | None = None
    is_lasting: Callable[[RunAnalysis, RunAnalysis], bool] | None = None
    state_rest: Callable[[RunAnalysis, Finding], Sequence[Fact]] | None = None

    def detect(self, function: Detect) -> Detect:
        """Declare the function that finds the signs of the cause in a recording."""
        self.find_signs = function
        return function

    def observe(self, function: Observe) -> Observe:
        """Declare the function that looks for the cause in the measured step."""
        self.look_at_step = function
        return function

    def edit(self, function: Edit) -> Edit:
        """Declare the function that removes the cause from the step."""
        self.remove = function
        return function

    def reschedule(self, function: Reschedule) -> Reschedule:
        """Declare the function that lists the changes to the engine's schedule."""
        self.list_changes = function
        return function

    def refute(self, function: Callable[[PlayedStep], bool]) -> Callable[[PlayedStep], bool]:
        """Declare the function that checks if the measured step shows another reason for the signs."""
        self.is_refuted = function
        return function

    def doubt(self, function: Callable[[RunAnalysis], bool]) -> Callable[[RunAnalysis], bool]:
        """Declare the function that checks if low confidence is not about time: the fix may be impossible."""
        self.is_note = function
        return function

    def compare(
        self, function: Callable[[RunAnalysis, RunAnalysis], bool]
    ) -> Callable[[RunAnalysis, RunAnalysis], bool]:
        """Declare the function that checks if the baseline had as much of it, exposed or hidden."""
        self.is_lasting = function
        return function

    def complete(
        self, function: Callable[[RunAnalysis, Finding], Sequence[Fact]]
    ) -> Callable[[RunAnalysis, Finding], Sequence[Fact]]:
        """Declare the function that adds the facts known only from the final range."""
        self.state_rest = function
        return function

    @property
    def doc(self) -> str:
        """Path of its page."""
        return f"docs/findings/{self.id}.md"

    def explains(self, other: "Cause") -> bool:
        """Return True if the signs of the other cause may be effects of this one."""
        return other.sign in self.produces if other.sign is not None else False


def make_finding(analysis: RunAnalysis, cause: Cause, signal: Signal) -> Finding:
    """Build the finding of a signal, with the texts of the record and savings in integer ns and bytes."""
    low, high = signal.saving_ns if signal.saving_ns is not None else (0.0, signal.lost_ns)
    fix = signal.fix if signal.fix is not None else cause.fix
    sentence = signal.sentence or (cause.observed if isinstance(signal, Observation) else cause.sentence)
    freed = signal.saving_bytes
    return Finding(
        id=cause.id,
        cause=cause.name,
        severity=signal.severity or rate_severity(high, mean_wall_ns(analysis)),
        sentence=write_sentence(sentence, signal.words, analysis.time),
        evidence=tuple(write_evidence(cause, fact, analysis.time) for fact in signal.facts),
        saving_ns=(int(min(low, high)), int(high)),
        confidence=signal.confidence,
        fix=choose_fix(analysis, fix, signal.numbers) if isinstance(fix, Fix) else fix or "",
        disprove=signal.disprove or cause.disprove,
        doc=cause.doc,
        saving_bytes=(int(min(freed)), int(freed[1])) if freed else None,
        location=signal.locate(),
    )


def rate_severity(saving: float, total: float) -> Severity:
    """Return HIGH from 10 % of the total (step time or peak bytes), MEDIUM from 5 %, else LOW."""
    if saving >= 0.10 * total:
        return Severity.HIGH
    return Severity.MEDIUM if saving >= 0.05 * total else Severity.LOW


def write_evidence(cause: Cause, fact: Fact, time: Time) -> Evidence:
    """Return a fact with its key, label and unit, in the run's words."""
    label, unit = cause.evidence.get(fact.key) or COMMON_EVIDENCE[fact.key]
    return Evidence(
        key=fact.key.format(**fact.words),
        what=label.format(per_step=time.words.per_step, of_step=time.words.of_step, **fact.words),
        value=fact.value,
        unit=unit.value,
        rank=fact.rank,
    )


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "ns": format_ns,
    "bytes": lambda size: format_bytes(int(size)),
    "percent": format_percent,
    "rate": format_rate,
}


class _SentenceFormatter(Formatter):
    """Format numbers in units: ``{lost:ns}``, ``{size:bytes}``, ``{share:percent}``, ``{speed:rate}``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return the value in the unit of the format specification; other specifications are Python's."""
        if format_spec in _FORMATS:
            return _FORMATS[format_spec](value)
        return str(super().format_field(value, format_spec))


def write_sentence(template: str, words: Mapping[str, object], time: Time) -> str:
    """Fill a sentence with a signal's numbers and the run's words."""
    basis = time.words
    known = {
        "per_step": basis.per_step,
        "of_step": basis.of_step,
        "of_each_step": basis.of_each_step,
        "step_is": basis.step_is,
    }
    return _SentenceFormatter().vformat(template, (), {**known, **words})


def make_memory_signal(
    largest: LargestRank,
    *,
    confidence: Confidence,
    facts: Sequence[Fact],
    saving_bytes: tuple[float, float],
    words: Mapping[str, object],
    sentence: str = "",
    fix: Fix | str | None = None,
    numbers: Mapping[str, object] | None = None,
    disprove: str = "",
    locate: Callable[[], SourceLocation | None] = lambda: None,
) -> Signal:
    """Return a signal about the largest rank; its number and peak are words for the sentence.

    Its severity follows from the freed share of the device's memory, or of the peak if that is unknown.
    """
    low, high = saving_bytes
    return Signal(
        confidence=confidence,
        words={"rank": largest.rank, "peak": largest.peak_bytes, **words},
        facts=[make_fact("peak_of_largest_rank", largest.memory.peak_bytes, rank=largest.rank), *facts],
        saving_bytes=(min(low, high), high),
        severity=rate_severity(high, largest.total_bytes or largest.peak_bytes),
        sentence=sentence,
        fix=fix,
        numbers=numbers or {},
        disprove=disprove,
        locate=locate,
    )
