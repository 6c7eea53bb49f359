"""``adamw.cu`` compiled by NVRTC without a GPU: it fits the registers and moves 28 bytes a parameter."""

import io
import itertools
import re

import pytest

from zprof.reference_engine.optimizer.cuda import cache, program

core = pytest.importorskip("cuda.core", reason="needs zprof[cuda] or zprof[dev]: NVRTC compiles the kernel")

ARCHS = ("sm_80", "sm_90", "sm_100")
GRADIENTS = {"float32": 4, "bfloat16": 2, "float16": 2}
LOWS = {"none": 0, "bfloat16": 2, "float16": 2}
ADAMW = {f"adamw_{g}_{low}": (GRADIENTS[g], LOWS[low]) for g, low in itertools.product(GRADIENTS, LOWS)}
SUMS = {f"sum_of_squares_{name}": size for name, size in GRADIENTS.items()}
PACK_BYTES = 16
PACK_ELEMENTS = 8


@pytest.fixture(scope="module", params=ARCHS)
def assembler_log(request: pytest.FixtureRequest) -> str:
    log = io.StringIO()
    options = core.ProgramOptions(
        name=program.SOURCE_NAME, arch=request.param, ptxas_options=["-v"], **program.OPTIONS
    )
    core.Program(program.source(), "c++", options).compile("cubin", logs=log)
    return log.getvalue()


def test_no_kernel_spills_registers(assembler_log):
    resources = re.findall(
        r"function '(\w+)' for.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        assembler_log,
        re.DOTALL,
    )
    assert {name for name, *_ in resources} == {*ADAMW, *SUMS, "sum_partials"}
    spilling = [entry for entry in resources if entry[1:] != ("0", "0", "0")]
    assert not spilling


def test_three_blocks_fit_a_multiprocessor(assembler_log):
    # 65536 registers; 3 blocks of 256 threads with 112 bytes each under way are 86 kB, and at 4.8 TB/s a
    # multiprocessor of 132 needs about 25 kB to cover 700 ns
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", assembler_log)]
    assert len(registers) == len(ADAMW) + len(SUMS) + 1
    assert max(registers) * 256 * 3 <= 65536


@pytest.fixture(scope="module")
def functions() -> dict[str, str]:
    """PTX by kernel.  cuda.core wants a driver for PTX, so NVRTC is asked directly."""
    from cuda.bindings import nvrtc

    options = core.ProgramOptions(name=program.SOURCE_NAME, arch="compute_90", **program.OPTIONS)
    flags = options.as_bytes("nvrtc")
    error, handle = nvrtc.nvrtcCreateProgram(program.source().encode(), b"adamw.cu", 0, [], [])
    assert int(error) == 0
    (error,) = nvrtc.nvrtcCompileProgram(handle, len(flags), flags)
    assert int(error) == 0
    _, size = nvrtc.nvrtcGetPTXSize(handle)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(handle, ptx)
    nvrtc.nvrtcDestroyProgram(handle)
    parts = re.split(r"\.visible \.entry (\w+)\(", ptx.decode())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def accesses(function: str, kind: str) -> tuple[int, list[int]]:
    """Of ``ld`` or ``st``: 16-byte accesses, and the bytes of each narrower one."""
    wide, narrow = 0, []
    for vector, bits in re.findall(rf"\b{kind}\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)", function):
        size = int(vector or 1) * int(bits) // 8
        if size == PACK_BYTES:
            wide += 1
        else:
            narrow.append(size)
    return wide, sorted(narrow)


@pytest.mark.parametrize("name", ADAMW)
def test_the_loop_over_packs_moves_each_array_once(functions, name):
    gradient, low = ADAMW[name]
    loads, narrow_loads = accesses(functions[name], "ld")
    stores, narrow_stores = accesses(functions[name], "st")
    assert loads * PACK_BYTES == PACK_ELEMENTS * (gradient + 12)
    assert stores * PACK_BYTES == PACK_ELEMENTS * (12 + low)
    # the loop over single elements does the same, and the start reads found_inf, divisor and step
    assert narrow_loads == sorted([4, 4, 4, gradient, 4, 4, 4])
    assert narrow_stores == sorted([4, 4, 4] + [low] * (low > 0))
    assert ".local" not in functions[name]


def test_sixteen_bits_are_28_bytes_a_parameter_and_2_more_for_the_norm(functions):
    for half in ("bfloat16", "float16"):
        update = functions[f"adamw_{half}_{half}"]
        wide = accesses(update, "ld")[0] + accesses(update, "st")[0]
        assert wide * PACK_BYTES / PACK_ELEMENTS == 28
        assert accesses(functions[f"sum_of_squares_{half}"], "ld")[0] * PACK_BYTES / PACK_ELEMENTS == 2


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_reads_once_and_writes_its_partials_alone(functions, name):
    assert accesses(functions[name], "ld") == (SUMS[name] * PACK_ELEMENTS // PACK_BYTES, [SUMS[name]])
    assert accesses(functions[name], "st") == (0, [8])


def test_the_cache_gives_back_what_nvrtc_made(tmp_path, monkeypatch):
    code = cache.cubin("sm_90", tmp_path)
    assert code.startswith(b"\x7fELF")
    monkeypatch.setattr(program, "compile_cubin", None)  # calling it again would fail
    assert cache.cubin("sm_90", tmp_path) == code


def test_an_error_in_the_source_is_one_line_with_nvrtcs_first():
    with pytest.raises(
        program.KernelError, match=r"adamw.cu cannot be compiled for sm_90: .*\"nonsense\""
    ) as seen:
        program.compile_cubin("__global__ void f() { nonsense; more; }", "sm_90")
    assert "\n" not in str(seen.value)


def test_an_unknown_architecture_is_one_line():
    with pytest.raises(program.KernelError, match=r"for sm_999: nvrtc: error: .*architecture") as seen:
        program.compile_cubin(program.source(), "sm_999")
    assert "\n" not in str(seen.value)
