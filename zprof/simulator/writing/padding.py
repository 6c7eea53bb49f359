"""Fills a file with functions of Python, as a recording with stacks has them, up to a size."""

from zprof.simulator.plan import Plan
from zprof.simulator.writing.layout import Layout
from zprof.simulator.writing.sheet import Sheet

_NAMES = (
    "torch/nn/modules/module.py(1784): _call_impl",
    "torch/nn/modules/linear.py(124): forward",
    "<built-in method linear of type object at 0x7f2c40a5d2e0>",
    "torch/utils/data/_utils/pin_memory.py(28): do_one_step",
    "threading.py(1016): _bootstrap_inner",
    "nn.Module: Linear_7",
    "torch/distributed/c10d_logger.py(81): wrapper",
    "<built-in method wait of torch._C._distributed_c10d.Work object at 0x7f2b3c1e9930>",
)
_LENGTH_NS = 1_700


def padding(plan: Plan, sheet: Sheet, process: int, around: int) -> None:
    """Add events of a thread that does nothing else, evenly over the window."""
    wanted = plan.recording.pad_to_bytes
    missing = wanted - around - sum(map(len, sheet.texts)) - 2 * len(sheet.texts)
    if missing <= 0:
        return
    layout = Layout(indented=plan.recording.indented)
    arguments = ('"Python parent id": %s', '"Python id": %s', '"Ev Idx": %s')
    templates = [
        layout.complete("python_function", name, str(process), str(process + 3), *arguments)
        for name in _NAMES
    ]
    mean = sum(map(len, templates)) // len(templates) + 26
    count = max(1, missing // mean)
    opens, span = sheet.opening.opens_ns, sheet.opening.closes_ns - sheet.opening.opens_ns
    pace = max(1, (span - _LENGTH_NS) // count)
    for index in range(count):
        begin = opens + index * pace
        template = templates[index & 7]
        sheet.complete(template, begin, begin + _LENGTH_NS, index, index + 1, 500_000 + index)
