"""Build and cache the templates of one rank's events."""

from collections.abc import Callable, Sequence

from zprof.simulator.engine.schedule import ExecutedInstruction
from zprof.simulator.program.instructions import CollectiveLaunch, CopyLaunch
from zprof.simulator.writing.dialects import TraceDialect
from zprof.simulator.writing.events import Layout
from zprof.simulator.writing.names import (
    COLLECTIVES,
    TYPES,
    KernelName,
    count_elements,
    format_metadata,
    list_collective_ranks,
)

_CHANNELS, _THREADS, _REGISTERS = 16, 512, 96
_OPERATOR = ('"External id": %s', '"Record function id": 0', '"Ev Idx": %s')
_PYTHON = ('"Python parent id": null', '"Python id": %s', '"Ev Idx": %s')


class Templates:
    """Build and cache templates.  Values are ts and dur, then those listed by each method."""

    def __init__(
        self, rank: int, dialect: TraceDialect, layout: Layout, metadata: bool, sequence: bool
    ) -> None:
        self._rank = rank
        self._dialect = dialect
        self._layout = layout
        self._metadata = metadata
        self._sequence = metadata and sequence
        self._host = str(get_process_id(rank))
        self._device = str(dialect.pid(rank))
        self._templates: dict[object, str] = {}
        self.launch_arrow = layout.flow_template(False, self._host, self._host)

    def arrow(self, stream: int) -> str:
        """Return the end of a launch's flow arrow; values: id, ts."""
        return self._get_template(
            ("arrow", stream), lambda: self._layout.flow_template(True, self._device, str(stream))
        )

    def operator(self, category: str, name: str) -> str:
        """Return an event of the main thread; values: external id, index."""
        return self._get_template((category, name), lambda: self._make_host_event(category, name, _OPERATOR))

    def python(self, name: str) -> str:
        """Return a Python function; values: its id, index."""
        return self._get_template(
            ("python", name), lambda: self._make_host_event("python_function", name, _PYTHON)
        )

    def call(self, call: str) -> str:
        """Return a runtime call; values: external id, correlation."""
        return self._get_template(
            ("call", call), lambda: self._make_host_event("cuda_runtime", *self._dialect.call(call))
        )

    def launch(self, name: str, shape: KernelName | None) -> str:
        """Return the call that launches a kernel; values: external id, correlation."""
        return self._get_template(
            ("launch", name),
            lambda: self._make_host_event("cuda_runtime", *self._dialect.launch(name, shape)),
        )

    def kernel(self, name: KernelName, stream: int) -> str:
        """Return a kernel; values: external id, correlation."""
        return self._get_template(
            ("kernel", name.operator, stream),
            lambda: self._make_device_event(
                "kernel",
                self._dialect.kernel(name),
                stream,
                self._dialect.kernel_arguments(self._rank, stream, name.grid, name.block, name.registers),
            ),
        )

    def copy(self, copy: CopyLaunch, stream: int) -> str:
        """Return a copy; values: external id, correlation."""
        key = ("copy", copy.direction, copy.bytes, copy.rate_bytes_per_s, stream)
        name, arguments = self._dialect.copy(self._rank, copy, stream)
        return self._get_template(key, lambda: self._make_device_event("gpu_memcpy", name, stream, arguments))

    def collective(self, collective: CollectiveLaunch, line: ExecutedInstruction, stream: int) -> str:
        """Return a collective's kernel; values: external id, correlation, sequence if there is one."""
        key = ("collective", *_make_collective_key(collective, line), stream)
        return self._get_template(key, lambda: self._make_collective(collective, line, stream))

    def parameters(self, collective: CollectiveLaunch, line: ExecutedInstruction) -> str:
        """Return PyTorch's record of a collective's parameters; values: external id, sequence if
        any, index.
        """
        key = ("parameters", *_make_collective_key(collective, line))
        return self._get_template(key, lambda: self._make_parameters(collective, line))

    def annotation(self, name: str, stream: int) -> str:
        """Return the device copy of a host annotation on a stream; value: external id."""
        return self._get_template(
            ("annotation", name, stream),
            lambda: self._make_device_event("gpu_user_annotation", name, stream, ['"External id": %s']),
        )

    def synchronisation(self, kind: str, stream: int, awaited_stream: int) -> str:
        """Return a synchronization as CUPTI records it; values: external id, correlation."""
        arguments = [
            f'"External id": %s, "cuda_sync_kind": "{kind}"',
            f'"wait_on_stream": {awaited_stream}, "wait_on_cuda_event_record_corr_id": -1, '
            '"wait_on_cuda_event_id": -1',
            f'"stream": {stream}, "correlation": %s',
            f'"device": {self._device}, "context": 1',
        ]
        key = ("sync", kind, stream, awaited_stream)
        return self._get_template(key, lambda: self._make_device_event("cuda_sync", kind, stream, arguments))

    def _make_collective(self, collective: CollectiveLaunch, line: ExecutedInstruction, stream: int) -> str:
        arguments = self._dialect.kernel_arguments(self._rank, stream, _CHANNELS, _THREADS, _REGISTERS)
        if self._metadata:
            arguments += format_metadata(line, list_collective_ranks(line, self._rank), self._sequence)
        return self._make_device_event("kernel", self.collective_name(collective), stream, arguments)

    def collective_name(self, collective: CollectiveLaunch) -> str:
        """Return the name of a collective's kernel."""
        return self._dialect.collective(collective.kind, collective.dtype, self._metadata)

    def _make_parameters(self, collective: CollectiveLaunch, line: ExecutedInstruction) -> str:
        ranks = list_collective_ranks(line, self._rank)
        shape, (input_elements, _) = TYPES[collective.dtype].shape, count_elements(collective, len(ranks))
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        arguments = (
            *_OPERATOR[:2],
            *format_metadata(line, ranks, self._sequence),
            f'"Rank": {ranks.index(self._rank)}',
            f'"Input type": ["{shape}"], "Input Dims": [[{input_elements}]]',
            f'"Global rank start": {ranks[0]}, "Global rank stride": {stride}',
            _OPERATOR[2],
        )
        return self._make_host_event("cpu_op", "record_param_comms", arguments)

    def _make_host_event(self, category: str, name: str, arguments: Sequence[str]) -> str:
        return self._layout.complete_template(category, name, self._host, self._host, *arguments)

    def _make_device_event(self, category: str, name: str, stream: int, arguments: Sequence[str]) -> str:
        return self._layout.complete_template(category, name, self._device, str(stream), *arguments)

    def _get_template(self, key: object, make: Callable[[], str]) -> str:
        if key not in self._templates:
            self._templates[key] = make()
        return self._templates[key]


def get_process_id(rank: int) -> int:
    """Return the process number of a rank, unique within a host of eight ranks."""
    return 20_000 + 111 * (rank % 8)


def get_annotation(collective: CollectiveLaunch) -> str:
    """Return PyTorch's annotation of an NCCL collective."""
    return COLLECTIVES[collective.kind].annotation


def _make_collective_key(collective: CollectiveLaunch, line: ExecutedInstruction) -> tuple[object, ...]:
    assert line.groups is not None
    return collective.kind, collective.elements, collective.dtype, line.groups.name
