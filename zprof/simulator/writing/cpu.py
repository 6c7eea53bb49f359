"""Write the events of a CPU rank over gloo: operators and launches on the main thread, executions on workers.

Gloo's executions carry no id and no group; a reduce-scatter runs as an all-reduce of the whole.
"""

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
    Shape,
    Wait,
)
from zprof.simulator.writing.events import EventSheet, Layout, Moment
from zprof.simulator.writing.names import COLLECTIVES, KERNELS, TYPES, count_elements
from zprof.simulator.writing.templates import get_process_id

_OPERATOR = ('"External id": %s', '"Record function id": 0', '"Ev Idx": %s')
_STEP_PREFIX = "ProfilerStep#"
_OPERATORS = {
    Shape.ATTENTION: "aten::scaled_dot_product_attention",
    Shape.SPLIT: "aten::split_with_sizes_copy",
    Shape.PAD: "aten::_chunk_cat",
}
#: Range around what an autograd node runs.
_NODE = "autograd::engine::evaluate_function: "
_NODES = {
    Shape.GEMM: "MmBackward0",
    Shape.ATTENTION: "ScaledDotProductFlashAttentionForCpuBackward0",
    Shape.NORM: "NativeLayerNormBackward0",
    Shape.ELEMENTWISE: "AddBackward0",
}


class CpuWriter:
    """Write one rank, instruction by instruction.  ``lost``: numbers of collectives missing from the
    trace.
    """

    def __init__(self, schedule: Schedule, rank: int, sheet: EventSheet) -> None:
        self.sheet = sheet
        self.lost: set[int] = set()
        self._recording = schedule.plan.recording
        self._layout = Layout(indented=self._recording.indented)
        self._main = str(get_process_id(rank))
        self._workers: dict[str, int] = {}
        self._made: dict[object, str] = {}
        self._id = 1024 * (1 + rank % 16)
        self._open: list[Moment] = []
        self._collectives = 0
        self._drops = {index for of, index in schedule.plan.drops if of == rank}

    @property
    def rows(self) -> list[tuple[int, str]]:
        """Threads and their names; a worker was a Python thread before gloo named it."""
        found = [(int(self._main), f"thread {self._main} (python3)")]
        for worker in self._workers.values():
            found.append((worker, f"thread {worker} (python3)"))
            found.append((worker, f"thread {worker} (pt_gloo_runloop)"))
        return found

    def write(self, moment: Moment) -> None:
        """Write one instruction."""
        self._id += 1
        self._write(moment.line.instruction, moment)

    @singledispatchmethod
    def _write(self, instruction: Instruction, moment: Moment) -> None:
        raise TypeError(f"a CPU rank does not {type(instruction).__name__}")

    @_write.register
    def _(self, kernel: Kernel, moment: Moment) -> None:
        name = _OPERATORS.get(kernel.shape, KERNELS[kernel.shape].operator)
        if kernel.backward:
            self._operator("cpu_op", _NODE + _NODES[kernel.shape], moment.begin, moment.end)
        self._operator("cpu_op", name, moment.begin, moment.end)

    @_write.register
    def _(self, collective: Collective, moment: Moment) -> None:
        number, line = self._collectives, moment.line
        self._collectives += 1
        assert line.groups is not None
        if number in self._drops:
            self.sheet.dropped += 1
            self.lost.add(number)
            return
        launch, execution = self._collective_templates(collective, line.groups.size, line.lane)
        self.sheet.complete(launch, moment.host_begin, moment.host_end, self._id, self._id)
        self._id += 1
        if not self.sheet.complete(execution, moment.begin, moment.end, self._id, self._id):
            self.lost.add(number)

    @_write.register
    def _(self, wait: Wait, moment: Moment) -> None:
        if self._recording.wait_ranges:
            self._operator("user_annotation", "zprof::wait", moment.begin, moment.end)

    @_write.register
    def _(self, copy: Copy, moment: Moment) -> None:
        name = f"zprof::copy shard unit=layers.{copy.unit} bytes={copy.bytes}"
        self._operator("user_annotation", name, moment.begin, moment.end)

    @_write.register
    def _(self, work: HostWork, moment: Moment) -> None:
        if work.name:
            arguments = ('"Python parent id": null', '"Python id": %s', '"Ev Idx": %s')
            template = self._once("python_function", work.name, self._main, arguments)
            self.sheet.complete(template, moment.host_begin, moment.host_end, self._id, self._id)

    @_write.register
    def _(self, mark: Begin, moment: Moment) -> None:
        self._open.append(moment)

    @_write.register
    def _(self, mark: End, moment: Moment) -> None:
        begin = self._open.pop().host_begin
        if mark.name.startswith(_STEP_PREFIX):
            begin = max(begin, self.sheet.opening.opens_ns)
        category = "cpu_op" if mark.name.startswith("aten::") else "user_annotation"
        self._operator(category, mark.name, begin, moment.host_begin)

    def _collective_templates(self, collective: Collective, size: int, lane: str) -> tuple[str, str]:
        names, shape = COLLECTIVES[collective.kind], TYPES[collective.dtype].shape
        put_in, got_out = count_elements(collective, size)
        worker = self._workers.setdefault(lane, int(self._main) + 11 + len(self._workers))
        many = collective.kind.value == "all_reduce"
        dims = f"[[{put_in}]], [], [], [], []" if many else f"[{got_out}], [{put_in}], [], [], []"
        types = (
            '"TensorList", "", "", "", "Scalar"' if many else f'"{shape}", "{shape}", "", "Scalar", "Scalar"'
        )
        launched = (
            *_OPERATOR[:2],
            '"Concrete Inputs": ["", "", "", "True", "-1"]',
            f'"Input type": [{types}]',
            f'"Input Dims": [{dims}]',
            _OPERATOR[2],
        )
        ran = (
            _OPERATOR[0],
            _OPERATOR[1],
            '"Concrete Inputs": [""]',
            f'"Input type": ["{shape}"]',
            f'"Input Dims": [[{put_in}]]',
            _OPERATOR[2],
        )
        return (
            self._once("cpu_op", names.operator, self._main, launched),
            self._once("user_annotation", names.gloo, str(worker), ran),
        )

    def _operator(self, category: str, name: str, begin: int, end: int) -> None:
        template = self._once(category, name, self._main, _OPERATOR)
        self.sheet.complete(template, begin, end, self._id, self._id)

    def _once(self, category: str, name: str, thread: str, arguments: tuple[str, ...]) -> str:
        key = category, name, thread, arguments
        if key not in self._made:
            self._made[key] = self._layout.complete(category, name, self._main, thread, *arguments)
        return self._made[key]
