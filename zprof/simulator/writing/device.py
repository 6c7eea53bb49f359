"""Write the events of a rank with a device: host calls, device work, and the flow arrows between them."""

from collections.abc import Sequence
from functools import singledispatchmethod

from zprof.simulator.engine.schedule import SimulatedRun
from zprof.simulator.program.instructions import (
    CollectiveLaunch,
    CopyLaunch,
    DeviceStream,
    EndAnnotation,
    HostWork,
    Instruction,
    KernelLaunch,
    Reallocate,
    StartAnnotation,
    Sync,
)
from zprof.simulator.writing.dialects import TraceDialect
from zprof.simulator.writing.events import EventBuffer, InstructionTiming, Layout
from zprof.simulator.writing.names import COLLECTIVES, KERNELS
from zprof.simulator.writing.templates import Templates, get_annotation

_STEP_PREFIX = "ProfilerStep#"


class DeviceWriter:
    """Write one rank, instruction by instruction.  ``missing_collectives``: numbers of collectives not in the
    trace.
    """

    def __init__(self, schedule: SimulatedRun, rank: int, dialect: TraceDialect, buffer: EventBuffer) -> None:
        recording = schedule.plan.recording
        layout = Layout(indented=recording.indented)
        self.buffer = buffer
        self.missing_collectives: set[int] = set()
        self._metadata, self._sequence = recording.metadata, recording.metadata and recording.sequence
        self._templates = Templates(rank, dialect, layout, recording.metadata, recording.sequence)
        self._records_syncs = recording.synchronisation and dialect.records_synchronisation()
        self._stream_numbers = dialect.list_streams()
        self._streams = {
            DeviceStream.COMPUTE.value: self._stream_numbers[0],
            DeviceStream.COPY.value: self._stream_numbers[1],
        }
        self._id = 1024 * (1 + rank % 16)
        self._open: list[InstructionTiming] = []
        self._step_span: list[int] = []
        self._collectives = 0
        self._drops = {index for drop_rank, index in schedule.plan.drops if drop_rank == rank}

    @property
    def streams(self) -> list[int]:
        """All streams in use."""
        return sorted(self._streams.values())

    def write(self, timing: InstructionTiming) -> None:
        """Write one instruction."""
        self._id += 1
        self._write(timing.line.instruction, timing)

    @singledispatchmethod
    def _write(self, instruction: Instruction, timing: InstructionTiming) -> None:
        raise TypeError(f"a device does not support {type(instruction).__name__}")

    @_write.register
    def _(self, kernel: KernelLaunch, timing: InstructionTiming) -> None:
        name, stream = KERNELS[kernel.kind], self._streams[DeviceStream.COMPUTE]
        operator = name.backward if kernel.backward and name.backward else name.operator
        self._write_operator("cpu_op", operator, timing.host_begin, timing.host_end)
        if kernel.after:
            self._write_stream_wait(timing.host_begin + 300, stream)
        template = self._templates.kernel(name, stream)
        launch = self._templates.launch(name.operator, name)
        self._write_device_work(template, launch, stream, timing, ())
        self._step_span += [timing.begin, timing.end]

    @_write.register
    def _(self, copy: CopyLaunch, timing: InstructionTiming) -> None:
        stream = self._streams[copy.lane]
        self._write_operator("cpu_op", "aten::copy_", timing.host_begin, timing.host_end)
        template = self._templates.copy(copy, stream)
        self._write_device_work(template, self._templates.call("MemcpyAsync"), stream, timing, ())

    @_write.register
    def _(self, collective: CollectiveLaunch, timing: InstructionTiming) -> None:
        line, number = timing.line, self._collectives
        self._collectives += 1
        stream = self._get_stream(line.lane)
        self._write_launch_records(collective, timing)
        self._write_stream_wait(timing.host_begin + 2_500, stream)
        name = self._templates.collective_name(collective)
        template = "" if number in self._drops else self._templates.collective(collective, line, stream)
        numbers = (line.sequence,) if self._sequence else ()
        if not self._write_device_work(template, self._templates.launch(name, None), stream, timing, numbers):
            self.missing_collectives.add(number)
            return
        device_annotation = self._templates.annotation(get_annotation(collective), stream)
        self.buffer.add_complete(device_annotation, timing.begin - 1, timing.end + 1, self._id)

    @_write.register
    def _(self, sync: Sync, timing: InstructionTiming) -> None:
        begin, end = timing.host_begin + 1_000, timing.host_end - 300
        if sync.reads:
            self._write_operator("cpu_op", "aten::_local_scalar_dense", timing.host_begin, timing.host_end)
            self._write_call("StreamSynchronize", begin, end)
            self._write_sync("Stream Sync", begin + 200, end - 200, self._streams[DeviceStream.COMPUTE])
        else:
            self._write_call("EventSynchronize", begin, end)
            self._write_sync("Event Sync", begin + 200, end - 200, -1)

    @_write.register
    def _(self, reallocate: Reallocate, timing: InstructionTiming) -> None:
        middle = max(timing.host_begin, timing.host_end - reallocate.malloc_ns)
        self._write_call("Free", timing.host_begin, middle)
        self._id += 1
        self._write_call("Malloc", middle, timing.host_end)

    @_write.register
    def _(self, work: HostWork, timing: InstructionTiming) -> None:
        if work.name:
            template = self._templates.python(work.name)
            self.buffer.add_complete(template, timing.host_begin, timing.host_end, self._id, self._id)

    @_write.register
    def _(self, annotation: StartAnnotation, timing: InstructionTiming) -> None:
        self._open.append(timing)
        if annotation.name.startswith(_STEP_PREFIX):
            self._step_span = []

    @_write.register
    def _(self, annotation: EndAnnotation, timing: InstructionTiming) -> None:
        begin = self._open.pop().host_begin
        if annotation.name.startswith(_STEP_PREFIX):
            begin = max(begin, self.buffer.window.start_ns)
            stream = self._streams[DeviceStream.COMPUTE]
            device_annotation = self._templates.annotation(annotation.name, stream)
            self.buffer.add_complete(
                device_annotation, min(self._step_span) - 1, max(self._step_span) + 1, self._id
            )
        category = "cpu_op" if annotation.name.startswith("aten::") else "user_annotation"
        self._write_operator(category, annotation.name, begin, timing.host_begin)

    def _write_launch_records(self, collective: CollectiveLaunch, timing: InstructionTiming) -> None:
        """Write the operator, nested in it PyTorch's record of its parameters, nested in that NCCL's
        annotation.
        """
        begin, end = timing.host_begin, timing.host_end
        self._write_operator("cpu_op", COLLECTIVES[collective.kind].operator, begin, end)
        if self._metadata:
            template = self._templates.parameters(collective, timing.line)
            numbers = (timing.line.sequence,) if self._sequence else ()
            self.buffer.add_complete(template, begin + 800, end - 800, self._id, *numbers, self._id)
        self._write_operator("user_annotation", get_annotation(collective), begin + 1_600, end - 1_600)

    def _write_device_work(
        self, template: str, launch: str, stream: int, timing: InstructionTiming, numbers: Sequence[int]
    ) -> bool:
        """Write device work (empty template: not recorded), its launch call, and the flow arrow."""
        buffer, number = self.buffer, self._id
        recorded = bool(template) and buffer.add_complete(
            template, timing.begin, timing.end, number, number, *numbers
        )
        if recorded:
            buffer.add_flow(self._templates.arrow(stream), number, timing.begin)
        buffer.dropped += not template
        call_end = timing.launch + (timing.host_end - timing.launch) * 3 // 4
        if buffer.add_complete(launch, timing.launch, call_end, number, number):
            buffer.add_flow(self._templates.launch_arrow, number, timing.launch)
        return recorded

    def _write_stream_wait(self, begin: int, stream: int) -> None:
        """Write a stream's wait for an event of another stream."""
        self._write_call("StreamWaitEvent", begin, begin + 500)
        self._write_sync("Stream Wait Event", begin + 100, begin + 300, stream)
        self._id += 1

    def _write_operator(self, category: str, name: str, begin: int, end: int) -> None:
        template = self._templates.operator(category, name)
        self.buffer.add_complete(template, begin, end, self._id, self._id)

    def _write_call(self, call: str, begin: int, end: int) -> None:
        self.buffer.add_complete(self._templates.call(call), begin, end, self._id, self._id)

    def _write_sync(self, kind: str, begin: int, end: int, stream: int) -> None:
        if not self._records_syncs:
            return
        awaited_stream = self._streams[DeviceStream.COMPUTE] if kind == "Stream Wait Event" else stream
        template = self._templates.synchronisation(kind, stream, awaited_stream)
        self.buffer.add_complete(template, begin, end, self._id, self._id)

    def _get_stream(self, lane: str) -> int:
        if lane not in self._streams:
            self._streams[lane] = self._stream_numbers[len(self._streams)]
        return self._streams[lane]
