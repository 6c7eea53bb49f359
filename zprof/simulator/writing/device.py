"""Write the events of a rank with a device: calls of the host, work of the device, arrows between them."""

from collections.abc import Sequence
from functools import singledispatchmethod

from zprof.simulator.engine.schedule import Schedule
from zprof.simulator.program.instructions import (
    Begin,
    Collective,
    Copy,
    End,
    HostWork,
    Instruction,
    Kernel,
    Lane,
    Reallocate,
    Sync,
)
from zprof.simulator.writing.dialects import Dialect
from zprof.simulator.writing.events import EventSheet, Layout, Moment
from zprof.simulator.writing.names import COLLECTIVES, KERNELS
from zprof.simulator.writing.templates import Templates, get_annotation

_STEP_PREFIX = "ProfilerStep#"


class DeviceWriter:
    """Write one rank, instruction by instruction.  ``lost``: numbers of collectives missing from the
    trace.
    """

    def __init__(self, schedule: Schedule, rank: int, dialect: Dialect, sheet: EventSheet) -> None:
        recording = schedule.plan.recording
        layout = Layout(indented=recording.indented)
        self.sheet = sheet
        self.lost: set[int] = set()
        self._metadata, self._sequence = recording.metadata, recording.metadata and recording.sequence
        self._templates = Templates(rank, dialect, layout, recording.metadata, recording.sequence)
        self._synchronises = recording.synchronisation and dialect.sees_synchronisation()
        self._numbers = dialect.streams()
        self._streams = {Lane.COMPUTE.value: self._numbers[0], Lane.COPY.value: self._numbers[1]}
        self._id = 1024 * (1 + rank % 16)
        self._open: list[Moment] = []
        self._span: list[int] = []
        self._collectives = 0
        self._drops = {index for of, index in schedule.plan.drops if of == rank}

    @property
    def streams(self) -> list[int]:
        """All streams in use."""
        return sorted(self._streams.values())

    def write(self, moment: Moment) -> None:
        """Write one instruction."""
        self._id += 1
        self._write(moment.line.instruction, moment)

    @singledispatchmethod
    def _write(self, instruction: Instruction, moment: Moment) -> None:
        raise TypeError(f"a device does not {type(instruction).__name__}")

    @_write.register
    def _(self, kernel: Kernel, moment: Moment) -> None:
        name, stream = KERNELS[kernel.shape], self._streams[Lane.COMPUTE]
        operator = name.backward if kernel.backward and name.backward else name.operator
        self._operator("cpu_op", operator, moment.host_begin, moment.host_end)
        if kernel.after:
            self._stream_waits(moment.host_begin + 300, stream)
        template = self._templates.kernel(name, stream)
        launch = self._templates.launch(name.operator, name)
        self._work(template, launch, stream, moment, ())
        self._span += [moment.begin, moment.end]

    @_write.register
    def _(self, copy: Copy, moment: Moment) -> None:
        stream = self._streams[copy.lane]
        self._operator("cpu_op", "aten::copy_", moment.host_begin, moment.host_end)
        template = self._templates.copy(copy, stream)
        self._work(template, self._templates.call("MemcpyAsync"), stream, moment, ())

    @_write.register
    def _(self, collective: Collective, moment: Moment) -> None:
        line, number = moment.line, self._collectives
        self._collectives += 1
        stream = self._stream(line.lane)
        self._announce(collective, moment)
        self._stream_waits(moment.host_begin + 2_500, stream)
        name = self._templates.collective_name(collective)
        template = "" if number in self._drops else self._templates.collective(collective, line, stream)
        numbers = (line.sequence,) if self._sequence else ()
        if not self._work(template, self._templates.launch(name, None), stream, moment, numbers):
            self.lost.add(number)
            return
        seen = self._templates.annotation(get_annotation(collective), stream)
        self.sheet.complete(seen, moment.begin - 1, moment.end + 1, self._id)

    @_write.register
    def _(self, sync: Sync, moment: Moment) -> None:
        begin, end = moment.host_begin + 1_000, moment.host_end - 300
        if sync.reads:
            self._operator("cpu_op", "aten::_local_scalar_dense", moment.host_begin, moment.host_end)
            self._call("StreamSynchronize", begin, end)
            self._seen("Stream Sync", begin + 200, end - 200, self._streams[Lane.COMPUTE])
        else:
            self._call("EventSynchronize", begin, end)
            self._seen("Event Sync", begin + 200, end - 200, -1)

    @_write.register
    def _(self, retry: Reallocate, moment: Moment) -> None:
        middle = max(moment.host_begin, moment.host_end - retry.malloc_ns)
        self._call("Free", moment.host_begin, middle)
        self._id += 1
        self._call("Malloc", middle, moment.host_end)

    @_write.register
    def _(self, work: HostWork, moment: Moment) -> None:
        if work.name:
            template = self._templates.python(work.name)
            self.sheet.complete(template, moment.host_begin, moment.host_end, self._id, self._id)

    @_write.register
    def _(self, mark: Begin, moment: Moment) -> None:
        self._open.append(moment)
        if mark.name.startswith(_STEP_PREFIX):
            self._span = []

    @_write.register
    def _(self, mark: End, moment: Moment) -> None:
        begin = self._open.pop().host_begin
        if mark.name.startswith(_STEP_PREFIX):
            begin = max(begin, self.sheet.opening.opens_ns)
            stream = self._streams[Lane.COMPUTE]
            seen = self._templates.annotation(mark.name, stream)
            self.sheet.complete(seen, min(self._span) - 1, max(self._span) + 1, self._id)
        category = "cpu_op" if mark.name.startswith("aten::") else "user_annotation"
        self._operator(category, mark.name, begin, moment.host_begin)

    def _announce(self, collective: Collective, moment: Moment) -> None:
        """Write the operator, within it PyTorch's record of its parameters, within that NCCL's annotation."""
        begin, end = moment.host_begin, moment.host_end
        self._operator("cpu_op", COLLECTIVES[collective.kind].operator, begin, end)
        if self._metadata:
            template = self._templates.parameters(collective, moment.line)
            numbers = (moment.line.sequence,) if self._sequence else ()
            self.sheet.complete(template, begin + 800, end - 800, self._id, *numbers, self._id)
        self._operator("user_annotation", get_annotation(collective), begin + 1_600, end - 1_600)

    def _work(self, template: str, launch: str, stream: int, moment: Moment, numbers: Sequence[int]) -> bool:
        """Write device work (an empty template: its record is lost), the call before it, and the arrow."""
        sheet, number = self.sheet, self._id
        recorded = bool(template) and sheet.complete(
            template, moment.begin, moment.end, number, number, *numbers
        )
        if recorded:
            sheet.flow(self._templates.arrow(stream), number, moment.begin)
        sheet.dropped += not template
        returned = moment.launch + (moment.host_end - moment.launch) * 3 // 4
        if sheet.complete(launch, moment.launch, returned, number, number):
            sheet.flow(self._templates.launch_arrow, number, moment.launch)
        return recorded

    def _stream_waits(self, begin: int, stream: int) -> None:
        """Write a stream's wait for an event of another stream."""
        self._call("StreamWaitEvent", begin, begin + 500)
        self._seen("Stream Wait Event", begin + 100, begin + 300, stream)
        self._id += 1

    def _operator(self, category: str, name: str, begin: int, end: int) -> None:
        template = self._templates.operator(category, name)
        self.sheet.complete(template, begin, end, self._id, self._id)

    def _call(self, what: str, begin: int, end: int) -> None:
        self.sheet.complete(self._templates.call(what), begin, end, self._id, self._id)

    def _seen(self, kind: str, begin: int, end: int, stream: int) -> None:
        if not self._synchronises:
            return
        waits_on = self._streams[Lane.COMPUTE] if kind == "Stream Wait Event" else stream
        template = self._templates.synchronisation(kind, stream, waits_on)
        self.sheet.complete(template, begin, end, self._id, self._id)

    def _stream(self, lane: str) -> int:
        if lane not in self._streams:
            self._streams[lane] = self._numbers[len(self._streams)]
        return self._streams[lane]
