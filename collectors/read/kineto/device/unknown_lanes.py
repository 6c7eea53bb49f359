"""Find the lanes of accelerators whose events are not understood, and tell the device of a trace.

Work of a device is understood if it is a ``kernel``. What else runs beside the host may be the device's work,
its queue, or a view of either twice, so it is neither work nor idle time.
"""

import re
from collections import Counter

import numpy as np

from zprof.base.formatting import printable, shorten
from zprof.collectors.read.kineto.trace import ABSENT, Trace

_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
#: Categories of torch's profiler that are not of one accelerator. ``""``: an event without a category.
_HOST = frozenset(
    {
        "cpu_op",
        "user_annotation",
        "gpu_user_annotation",
        "cuda_runtime",
        "cuda_driver",
        "cuda_sync",
        "cuda_profiler_range",
        "cpu_instant_event",
        "python_function",
        "overhead",
        "collective_comm",
        "external_correlation",
        "ac2g",
        "fwdbwd",
    }
)
_UNDERSTOOD = _HOST | _WORK | {"Trace"}
#: Accelerators of torch with categories of their own, on the host too.
_OWN_CATEGORY = re.compile(r"(mtia|xpu|hpu|privateuse1|glow)_")
_HOST_PROCESS = re.compile(r"\bcpu\b|host|loader|worker", re.IGNORECASE)
_NPU_PROCESS = re.compile(r"ascend|\bcann\b", re.IGNORECASE)
_MAX_MODEL = 80
#: Fewer events beside the host are taken as damaged: the id of their process is not their own.
_MIN_SHARE = 0.05


def find_unknown_lanes(trace: Trace) -> list[tuple[str, int]]:
    """Return the lanes that are not understood, the largest first; none if the trace has kernels.

    A lane is the name of a process, else the category, of events that may be a device's, and their number.
    """
    categories = trace.category.texts
    if "kernel" in categories:
        return []
    # The number of rows of each process and category; a process whose id is a word has none.
    processes, position = np.unique(trace.process, return_inverse=True)
    width = max(1, len(trace.category.texts))
    keys, counts = np.unique(position * width + trace.category.codes, return_counts=True)
    counts = {
        (int(processes[key // width]), trace.category.texts[key % width]): count
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
    }
    host = {process for process, category in counts if category in _HOST} - {ABSENT}
    own, others = Counter[str](), Counter[str]()
    for (process, category), count in counts.items():
        name = trace.process_names.get(process, "")
        if _OWN_CATEGORY.match(category):
            own[category] += count
        elif category not in _UNDERSTOOD and process not in host and not _HOST_PROCESS.search(name):
            others[name or category or "a process without a name"] += count
    if others.total() >= _MIN_SHARE * max(1, len(trace)):
        own += others
    return own.most_common()


def detect_device(trace: Trace, lanes: list[tuple[str, int]]) -> str:
    """Return the device that a trace is of.

    It is ``cuda`` or ``hip``, with the model in brackets as in a recording if the trace has only one, an
    accelerator of torch by its name there, ``npu`` (Ascend), ``unknown``, or ``cpu`` if nothing ran on a
    device.
    """
    categories = trace.category.texts
    own = next((found[1] for category in categories if (found := _OWN_CATEGORY.match(category))), None)
    if own is not None:
        return own
    if lanes:
        names = trace.process_names.values()
        return "npu" if any(_NPU_PROCESS.search(name) for name in names) else "unknown"
    if _WORK.isdisjoint(categories):
        return "cpu"
    is_amd = any("AMD" in name or "Instinct" in name for name in trace.header.devices)
    kind = "hip" if is_amd or any(text.startswith("hip") for text in trace.name.texts) else "cuda"
    models = {name for name in trace.header.devices if name}
    return f"{kind} ({shorten(printable(models.pop()), _MAX_MODEL)})" if len(models) == 1 else kind
