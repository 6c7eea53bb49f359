"""``adamw.cu`` compiled by NVRTC without a GPU: it fits the registers and moves 28 bytes a parameter."""

import io
import itertools
import re

import pytest

from zprof.reference_engine.optimizer.cuda import compilation

core = pytest.importorskip("cuda.core", reason="needs zprof[cuda] or zprof[dev]: NVRTC compiles the kernel")

GRADIENTS = {"float32": 4, "bfloat16": 2, "float16": 2}
LOWS = {"none": 0, "bfloat16": 2, "float16": 2}
ADAMW = {f"adamw_{g}_{low}": (GRADIENTS[g], LOWS[low]) for g, low in itertools.product(GRADIENTS, LOWS)}
SUMS = {f"sum_of_squares_{name}": size for name, size in GRADIENTS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_no_kernel_spills_and_three_blocks_fit_a_multiprocessor(arch):
    # 65536 registers; 3 blocks of 256 threads with 112 bytes each under way are 86 kB, and at 4.8 TB/s a
    # multiprocessor of 132 needs about 25 kB to cover 700 ns
    log = io.StringIO()
    options = core.ProgramOptions(
        name=compilation.SOURCE_NAME, arch=arch, ptxas_options=["-v"], **compilation.OPTIONS
    )
    core.Program(compilation.read_source(), "c++", options).compile("cubin", logs=log)
    resources = re.findall(
        r"function '(\w+)' for.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        log.getvalue(),
        re.DOTALL,
    )
    assert {name for name, *_ in resources} == {*ADAMW, *SUMS, "sum_partials"}
    assert {entry[1:] for entry in resources} == {("0", "0", "0")}
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", log.getvalue())]
    assert len(registers) == len(resources)
    assert max(registers) * 256 * 3 <= 65536


@pytest.fixture(scope="module")
def functions() -> dict[str, str]:
    """PTX by kernel.  cuda.core wants a driver for PTX, so NVRTC is asked directly."""
    from cuda.bindings import nvrtc

    options = core.ProgramOptions(name=compilation.SOURCE_NAME, arch="compute_90", **compilation.OPTIONS)
    flags = options.as_bytes("nvrtc")
    error, handle = nvrtc.nvrtcCreateProgram(compilation.read_source().encode(), b"adamw.cu", 0, [], [])
    assert int(error) == 0
    (error,) = nvrtc.nvrtcCompileProgram(handle, len(flags), flags)
    assert int(error) == 0
    _, size = nvrtc.nvrtcGetPTXSize(handle)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(handle, ptx)
    nvrtc.nvrtcDestroyProgram(handle)
    parts = re.split(r"\.visible \.entry (\w+)\(", ptx.decode())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def accesses(body: str, kind: str) -> list[int]:
    """Return the bytes of each access to device memory, of ``ld`` or ``st``."""
    found = re.findall(rf"\b{kind}\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)", body)
    return sorted(int(vector or 1) * int(bits) // 8 for vector, bits in found)


def element_loops(function: str) -> tuple[str, str, str]:
    """Return the loops over full tiles, the packs of the last one, and elements outside packs.

    Each is one basic block of PTX that ends in a branch to itself.
    """
    blocks = re.split(r"\n(\$L\w+):", function)
    bodies = dict(zip(blocks[1::2], blocks[2::2], strict=True))
    loops = [body for label, body in bodies.items() if re.search(rf"bra\S*\s+\{label};", body)]
    tiles, packs, singles = (body for body in loops if "ld.global" in body)
    return tiles, packs, singles


@pytest.mark.parametrize("name", ADAMW)
def test_each_loop_moves_each_array_once_a_pack_at_a_time(functions, name):
    gradient, low = ADAMW[name]
    for body, packs, elements in zip(element_loops(functions[name]), (2, 1, 1), (4, 4, 1), strict=True):
        size = 4 * elements  # a pack is 128 bits of the 32-bit types
        assert accesses(body, "ld") == sorted(packs * [elements * gradient, size, size, size])
        assert accesses(body, "st") == sorted(packs * [size, size, size, *[elements * low] * (low > 0)])
        assert not re.search(r"\b(ld|st)\.(?!global)|\.f64", body)  # generic ones, or of the stack; float64
        assert "ld.global" not in body[body.index("st.global") :]


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_reads_once_and_writes_its_partials_alone(functions, name):
    size = SUMS[name]
    loops = element_loops(functions[name])
    assert [accesses(body, "ld") for body in loops] == [[4 * size] * 2, [4 * size], [size]]
    assert accesses(functions[name], "st") == [8]


@pytest.mark.parametrize(
    ("source", "arch", "word"),
    [("__global__ void f() { nonsense; more; }", "sm_90", "nonsense"), ("", "sm_999", "sm_999")],
)
def test_what_cannot_be_compiled_is_one_line(source, arch, word):
    with pytest.raises(compilation.KernelError, match=f"^[^\n]*{word}[^\n]*$"):
        compilation.compile_cubin(source, arch)
