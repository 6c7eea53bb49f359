"""Write traces of any size as libkineto would: a sharded step on one of eight GPUs, over and over.

The mix of events is that of real traces recorded with stacks: python_function 37 %, flows 22 %, cpu_op 16 %,
cuda_runtime 13 %, kernel 8 %, and the rest.  Names, arguments and the layout of the text are libkineto's.
"""

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from isal import igzip

_DISTRIBUTED = (
    '{"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": 1, "pg_config": [{"pg_name": "0", '
    '"pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, '
    '"ranks": [0, 1, 2, 3, 4, 5, 6, 7]}], '
    '"nccl_version": "2.27.5"}'
)
_HEAD = f"""
{{
  "schemaVersion": 1,
  "deviceProperties": [
    {{
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "numSms": 132
    }}
  ],
  "distributedInfo": {_DISTRIBUTED},
  "record_shapes": 1,
  "with_stack": 1,
  "traceEvents": [
  """
_TAIL = """
  ],
  "traceName": "/tmp/trace.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1767189312000000000
}
"""
_SPAN = (
    '{{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
    '    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
)
_FLOW = (
    '{{\n    "ph": "{ph}", "id": {id}, "pid": {pid}, "tid": {tid}, "ts": {ts:.3f},\n'
    '    "cat": "{cat}", "name": "{cat}"{end}\n  }}'
)
_MEMORY = (
    '{{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
    '    "pid": 4242, "tid": 4242,\n    "ts": {ts:.3f},\n    "args": {{\n'
    '      "Total Reserved": 42949672960, "Total Allocated": {total}, "Bytes": {bytes}, '
    '"Addr": 140{addr}, "Device Id": 0, "Device Type": 1, "Ev Idx": {index}\n    }}\n  }}'
)
_KERNEL_ARGS = (
    '"External id": {external},      "queued": 0, "device": 0, "context": 1,      "stream": {stream}, '
    '"correlation": {correlation},      "registers per thread": 96,      "shared memory": 33792,      '
    '"blocks per SM": 4.740741,      "warps per SM": 75.851852,      "grid": [512, 1, 1],      '
    '"block": [256, 1, 1],      "est. achieved occupancy %": 75'
)
_METADATA = (
    '"Collective name": "{collective}", "In msg nelems": {inward}, "Out msg nelems": {outward}, '
    '"Group size": 8, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", '
    '"Process Group Name": "0", "Process Group Description": "default_pg", '
    '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Seq": {sequence}'
)
_KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
    "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t> >(flash::Flash_fwd_params)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
    "at::native::MeanOps<float, float> > >",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
)
_OPERATORS = ("aten::mm", "aten::linear", "aten::add", "aten::empty_strided", "aten::copy_", "aten::_to_copy")
_FILES = (
    "torch/nn/modules/module.py",
    "torch/nn/functional.py",
    "transformers/models/llama/modeling_llama.py",
)


def events(seed: int = 0) -> Iterator[str]:
    """Yield events as text, endlessly."""
    chance, now = random.Random(seed), 4_368_137_779_000.0
    for step in count():
        yield _span("user_annotation", f"ProfilerStep#{step}", now, 9000.0, f'"External id": {step}')
        for unit in range(32):
            for text in _unit(chance, now, step, unit):
                now += chance.random()
                yield text


def _unit(chance: random.Random, now: float, step: int, unit: int) -> Iterator[str]:
    """Yield about 500 events: one layer's collective, and its operators, calls and kernels."""
    base = (step * 32 + unit) * 512
    yield from _collective(now, base, step * 32 + unit, unit)
    for index in range(base + 8, base + 8 + 40):
        at = now + (index - base) * 4.5
        duration = chance.randrange(1000, 90_000) / 1000
        yield from _stack(chance, at, index)
        for child in range(2):
            yield _operator(chance, at + child, duration / 2, index * 4 + child)
        yield _call("cudaLaunchKernelExC", at, index)
        yield from _flow("ac2g", index, at, at + 9)
        kernel = chance.choice(_KERNELS)
        yield _kernel(kernel, at + 9, duration, 7, index, "")
        if index % 2:
            yield _call("cudaEventQuery", at + 1, index + (1 << 24))
            yield from _flow("ac2g", index + (1 << 24), at + 1, at + 1)
        if index % 10 == 0:
            yield from _flow("fwdbwd", index, at, at + 3)
            yield _MEMORY.format(ts=at, total=chance.randrange(1 << 34), bytes=512, addr=index, index=index)


def _collective(now: float, base: int, sequence: int, unit: int) -> Iterator[str]:
    gathers = unit % 3 < 2
    name = "_allgather_base" if gathers else "_reduce_scatter_base"
    kernel = f"ncclDevKernel_{'AllGather_RING_LL' if gathers else 'ReduceScatter_Sum_bf16_RING_LL'}"
    small, large = 13_369_600, 106_956_800
    metadata = _METADATA.format(
        collective=name,
        inward=small if gathers else large,
        outward=large if gathers else small,
        sequence=sequence,
    )
    prefix = f'"External id": {base},"Record function id": {base}, '
    title = f"FSDP::all_gather (layers.{unit})"
    yield _span("user_annotation", title, now, 90.5, f'"External id": {base},"Ev Idx": {base}')
    yield _span("cpu_op", "record_param_comms", now + 1, 60.25, f'{prefix}"Ev Idx": {base}, {metadata}')
    yield _span("user_annotation", f"nccl:{name}", now + 2, 40.125, f'"External id": {base + 1}')
    yield _call("cudaLaunchKernelExC", now + 3, base)
    yield from _flow("ac2g", base, now + 3, now + 12)
    yield _kernel(f"{kernel}(ncclDevKernelArgsStorage<4096ul>)", now + 12, 812.125, 24, base, ", " + metadata)


def _stack(chance: random.Random, at: float, index: int) -> Iterator[str]:
    for depth in range(5):
        name = f"{chance.choice(_FILES)}({chance.randrange(2000)}): forward"
        arguments = f'"Python parent id": {index * 8 + depth}, "Python id": {index * 8 + depth + 1}, '
        yield _span("python_function", name, at + depth / 8, 50.0 - depth, arguments + f'"Ev Idx": {index}')


def _operator(chance: random.Random, at: float, duration: float, index: int) -> str:
    arguments = (
        f'"External id": {index},"Record function id": {index}, "Concrete Inputs": ["", "", ""], '
        f'"Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Strides": [[4096, 1], [1, 4096]], '
        f'"Input Dims": [[2048, 4096], [4096, 4096]], "Ev Idx": {index}'
    )
    return _span("cpu_op", chance.choice(_OPERATORS), at, duration, arguments)


def _call(name: str, at: float, correlation: int) -> str:
    arguments = f'"External id": {correlation},      "cbid": 430, "correlation": {correlation}'
    return _span("cuda_runtime", name, at, 4.125, arguments)


def _kernel(name: str, at: float, duration: float, stream: int, correlation: int, more: str) -> str:
    arguments = _KERNEL_ARGS.format(external=correlation, stream=stream, correlation=correlation) + more
    return _span("kernel", name, at, duration, arguments, pid=0, tid=stream)


def _span(cat: str, name: str, ts: float, dur: float, args: str, pid: int = 4242, tid: int = 4242) -> str:
    return _SPAN.format(cat=cat, name=name, ts=ts, dur=dur, args=args, pid=pid, tid=tid)


def _flow(cat: str, number: int, begin: float, end: float) -> Iterator[str]:
    yield _FLOW.format(ph="s", id=number, pid=4242, tid=4242, ts=begin, cat=cat, end="")
    yield _FLOW.format(ph="f", id=number, pid=0, tid=7, ts=end, cat=cat, end=', "bp": "e"')


def write(path: Path, text_bytes: int, seed: int = 0, rank: int = 0) -> int:
    """Write a gzipped trace of about ``text_bytes`` of text, and return the number of its events."""
    written, number, separator = 0, 0, ""
    with igzip.open(path, "wb", compresslevel=2) as file:
        file.write(_HEAD.replace('"rank": 0', f'"rank": {rank}').encode())
        for text in events(seed):
            row = (separator + text).encode()
            file.write(row)
            written, number, separator = written + len(row), number + 1, ",\n  "
            if written >= text_bytes:
                break
        file.write(_TAIL.encode())
    return number
