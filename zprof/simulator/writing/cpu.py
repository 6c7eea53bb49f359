"""Write the events of a CPU rank over gloo: operators and launches on the main thread, executions on workers.

Gloo's executions have no id and no group; a reduce-scatter runs as an all-reduce of the full tensor.
"""

from functools import singledispatchmethod

from zprof.simulator.engine.schedule import SimulatedRun
from zprof.simulator.program.instructions import (
    CollectiveLaunch,
    CopyLaunch,
    EndAnnotation,
    HostWork,
    Instruction,
    KernelLaunch,
    KernelWork,
    StartAnnotation,
    Wait,
)
from zprof.simulator.writing.events import EventBuffer, InstructionTiming, Layout
from zprof.simulator.writing.names import COLLECTIVES, KERNELS, TYPES, count_elements
from zprof.simulator.writing.templates import get_process_id

_OPERATOR = ('"External id": %s', '"Record function id": 0', '"Ev Idx": %s')
_STEP_PREFIX = "ProfilerStep#"
_OPERATORS = {
    KernelWork.ATTENTION: "aten::scaled_dot_product_attention",
    KernelWork.SPLIT: "aten::split_with_sizes_copy",
    KernelWork.PAD: "aten::_chunk_cat",
}
#: Prefix of the range around the operators of an autograd node.
_NODE = "autograd::engine::evaluate_function: "
_NODES = {
    KernelWork.GEMM: "MmBackward0",
    KernelWork.ATTENTION: "ScaledDotProductFlashAttentionForCpuBackward0",
    KernelWork.NORM: "NativeLayerNormBackward0",
    KernelWork.ELEMENTWISE: "AddBackward0",
}


class CpuWriter:
    """Write one rank, instruction by instruction.  ``missing_collectives``: numbers of collectives not in the
    trace.
    """

    def __init__(self, schedule: SimulatedRun, rank: int, buffer: EventBuffer) -> None:
        self.buffer = buffer
        self.missing_collectives: set[int] = set()
        self._recording = schedule.plan.recording
        self._layout = Layout(indented=self._recording.indented)
        self._main = str(get_process_id(rank))
        self._workers: dict[str, int] = {}
        self._templates: dict[object, str] = {}
        self._id = 1024 * (1 + rank % 16)
        self._open: list[InstructionTiming] = []
        self._collectives = 0
        self._drops = {index for drop_rank, index in schedule.plan.drops if drop_rank == rank}

    @property
    def rows(self) -> list[tuple[int, str]]:
        """Threads and their names; a worker has a Python thread's name until gloo renames it."""
        rows = [(int(self._main), f"thread {self._main} (python3)")]
        for worker in self._workers.values():
            rows.append((worker, f"thread {worker} (python3)"))
            rows.append((worker, f"thread {worker} (pt_gloo_runloop)"))
        return rows

    def write(self, timing: InstructionTiming) -> None:
        """Write one instruction."""
        self._id += 1
        self._write(timing.line.instruction, timing)

    @singledispatchmethod
    def _write(self, instruction: Instruction, timing: InstructionTiming) -> None:
        raise TypeError(f"a CPU rank does not support {type(instruction).__name__}")

    @_write.register
    def _(self, kernel: KernelLaunch, timing: InstructionTiming) -> None:
        name = _OPERATORS.get(kernel.kind, KERNELS[kernel.kind].operator)
        if kernel.backward:
            self._write_operator("cpu_op", _NODE + _NODES[kernel.kind], timing.begin, timing.end)
        self._write_operator("cpu_op", name, timing.begin, timing.end)

    @_write.register
    def _(self, collective: CollectiveLaunch, timing: InstructionTiming) -> None:
        number, line = self._collectives, timing.line
        self._collectives += 1
        assert line.groups is not None
        if number in self._drops:
            self.buffer.dropped += 1
            self.missing_collectives.add(number)
            return
        launch, execution = self._make_collective_templates(collective, line.groups.size, line.lane)
        self.buffer.add_complete(launch, timing.host_begin, timing.host_end, self._id, self._id)
        self._id += 1
        if not self.buffer.add_complete(execution, timing.begin, timing.end, self._id, self._id):
            self.missing_collectives.add(number)

    @_write.register
    def _(self, wait: Wait, timing: InstructionTiming) -> None:
        if self._recording.wait_ranges:
            self._write_operator("user_annotation", "zprof::wait", timing.begin, timing.end)

    @_write.register
    def _(self, copy: CopyLaunch, timing: InstructionTiming) -> None:
        name = f"zprof::copy shard unit=layers.{copy.unit} bytes={copy.bytes}"
        self._write_operator("user_annotation", name, timing.begin, timing.end)

    @_write.register
    def _(self, work: HostWork, timing: InstructionTiming) -> None:
        if work.name:
            arguments = ('"Python parent id": null', '"Python id": %s', '"Ev Idx": %s')
            template = self._get_template("python_function", work.name, self._main, arguments)
            self.buffer.add_complete(template, timing.host_begin, timing.host_end, self._id, self._id)

    @_write.register
    def _(self, annotation: StartAnnotation, timing: InstructionTiming) -> None:
        self._open.append(timing)

    @_write.register
    def _(self, annotation: EndAnnotation, timing: InstructionTiming) -> None:
        begin = self._open.pop().host_begin
        if annotation.name.startswith(_STEP_PREFIX):
            begin = max(begin, self.buffer.window.start_ns)
        category = "cpu_op" if annotation.name.startswith("aten::") else "user_annotation"
        self._write_operator(category, annotation.name, begin, timing.host_begin)

    def _make_collective_templates(
        self, collective: CollectiveLaunch, size: int, lane: str
    ) -> tuple[str, str]:
        names, shape = COLLECTIVES[collective.kind], TYPES[collective.dtype].shape
        input_elements, output_elements = count_elements(collective, size)
        worker = self._workers.setdefault(lane, int(self._main) + 11 + len(self._workers))
        is_list = collective.kind.value == "all_reduce"
        dims = (
            f"[[{input_elements}]], [], [], [], []"
            if is_list
            else f"[{output_elements}], [{input_elements}], [], [], []"
        )
        types = (
            '"TensorList", "", "", "", "Scalar"'
            if is_list
            else f'"{shape}", "{shape}", "", "Scalar", "Scalar"'
        )
        launch_arguments = (
            *_OPERATOR[:2],
            '"Concrete Inputs": ["", "", "", "True", "-1"]',
            f'"Input type": [{types}]',
            f'"Input Dims": [{dims}]',
            _OPERATOR[2],
        )
        execution_arguments = (
            _OPERATOR[0],
            _OPERATOR[1],
            '"Concrete Inputs": [""]',
            f'"Input type": ["{shape}"]',
            f'"Input Dims": [[{input_elements}]]',
            _OPERATOR[2],
        )
        return (
            self._get_template("cpu_op", names.operator, self._main, launch_arguments),
            self._get_template("user_annotation", names.gloo, str(worker), execution_arguments),
        )

    def _write_operator(self, category: str, name: str, begin: int, end: int) -> None:
        template = self._get_template(category, name, self._main, _OPERATOR)
        self.buffer.add_complete(template, begin, end, self._id, self._id)

    def _get_template(self, category: str, name: str, thread: str, arguments: tuple[str, ...]) -> str:
        key = category, name, thread, arguments
        if key not in self._templates:
            self._templates[key] = self._layout.complete_template(
                category, name, self._main, thread, *arguments
            )
        return self._templates[key]
