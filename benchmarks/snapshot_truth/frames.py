"""Call stacks as a snapshot has them: Python frames of the calling thread, with C++ frames if recorded.

With ``stacks="all"`` torch walks the C++ stack and puts the innermost Python frame where it finds the
interpreter's loop; the other Python frames follow at the end. The autograd engine's thread has no Python
frame but those of hooks and of functions written in Python.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

TORCH = "/opt/venv/lib/python3.12/site-packages/torch/"
SITE = "/opt/venv/lib/python3.12/site-packages/"


class PythonFrame(NamedTuple):
    """One frame of a Python stack."""

    file: str
    line: int
    name: str


_UNWIND = (
    ("??", 0, "torch::unwind::unwind()"),
    ("??", 0, "torch::CapturedTraceback::gather(bool, bool, bool)"),
    (
        "memory_snapshot.cpp",
        0,
        "torch::cuda::(anonymous namespace)::gather_with_cpp()",
    ),
    (
        "CUDACachingAllocator.cpp",
        0,
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)",
    ),
    (
        "",
        0,
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**, signed char, "
        "unsigned long, CUstream_st*)",
    ),
    ("", 0, "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)"),
)
_EMPTY = (
    ("", 0, "at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>, c10::Allocator*)"),
    ("??", 0, "at::detail::empty_generic(c10::ArrayRef<long>, c10::Allocator*)"),
    ("??", 0, "at::detail::empty_cuda(c10::ArrayRef<long>, c10::ScalarType)"),
)
_INTERPRETER = (
    ("??", 0, "_PyEval_EvalFrameDefault"),
    ("??", 0, "PyEval_EvalCode"),
    ("??", 0, "PyRun_StringFlags"),
    ("??", 0, "_PyRun_SimpleFileObject"),
    ("??", 0, "_PyRun_AnyFileObject"),
    ("??", 0, "Py_RunMain"),
    ("??", 0, "Py_BytesMain"),
    ("??", 0, "__libc_init_first"),
    ("??", 0, "__libc_start_main"),
    ("??", 0, "_start"),
)
_ENGINE = (
    ("", 0, "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)"),
    ("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"),
    ("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
    ("??", 0, "torch::autograd::Engine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue>)"),
    ("", 0, "torch::autograd::python::PythonEngine::thread_init(int, bool)"),
    ("thread48.o", 0, "execute_native_thread_routine"),
    ("??", 0, "pthread_condattr_setpshared"),
    ("??", 0, "__clone"),
)
#: Operators whose frames differ from those of a plain ``empty``: what calls the allocator.
_SPECIAL = {
    "cublas_workspace": (
        ("??", 0, "at::cuda::(anonymous namespace)::getNewWorkspace()"),
        ("??", 0, "at::cuda::getCUDABlasWorkspace(void*, void*)"),
        ("??", 0, "at::cuda::getCurrentCUDABlasHandle()"),
        ("??", 0, "void at::cuda::blas::gemm<float>(char, char, long, long, long, float, float const*)"),
    ),
    "cublaslt_workspace": (
        ("??", 0, "at::cuda::getUnifiedWorkspaceSize()"),
        ("??", 0, "void at::cuda::blas::gemm_and_bias<float>(bool, bool, long, long, long, float)"),
    ),
    "reducer": (
        ("??", 0, "c10d::Reducer::initialize_buckets(std::vector<std::vector<unsigned long>>&&)"),
        ("??", 0, "c10d::Reducer::Reducer(std::vector<at::Tensor>, std::vector<std::vector<unsigned long>>)"),
    ),
    "rebuild_buckets": (
        ("??", 0, "c10d::Reducer::initialize_buckets(std::vector<std::vector<unsigned long>>&&)"),
        ("??", 0, "c10d::Reducer::rebuild_buckets()"),
    ),
    "broadcast_coalesced": (
        ("??", 0, "torch::utils::flatten_dense_tensors(c10::ArrayRef<at::Tensor>)"),
        (
            "??",
            0,
            "c10d::broadcast_coalesced(c10::intrusive_ptr<c10d::ProcessGroup>, at::ArrayRef<at::Tensor>)",
        ),
    ),
    "nccl_barrier": (
        ("??", 0, "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)"),
        ("??", 0, "c10d::ProcessGroupNCCL::barrier(c10d::BarrierOptions const&)"),
    ),
    "accumulate_input": (
        ("??", 0, "at::_ops::add_Tensor::call(at::Tensor const&, at::Tensor const&, c10::Scalar const&)"),
        ("??", 0, "torch::autograd::InputBuffer::accumulate(unsigned long, at::Tensor&&)"),
    ),
    "accumulate_clone": (
        ("??", 0, "at::native::clone(at::Tensor const&, std::optional<c10::MemoryFormat>)"),
        ("??", 0, "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"),
    ),
}


class FrameRecorder:
    """Make lists of frames; a call from the same place gives the same list, as torch's own cache does."""

    def __init__(self, stacks: str) -> None:
        self._stacks = stacks
        self._lists: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        self._dicts: dict[tuple[str, int, str], dict[str, Any]] = {}

    def record(self, op: str, python: Sequence[PythonFrame], *, engine: bool) -> list[dict[str, Any]]:
        """Return the frames, innermost first. ``engine``: on the autograd engine's thread."""
        if self._stacks == "none":
            return []
        key = (op if self._stacks == "all" else "", engine, tuple(python))
        known = self._lists.get(key)
        if known is None:
            frames = _with_cpp(op, python, engine) if self._stacks == "all" else list(python)
            known = self._lists[key] = [self._make_dict(frame) for frame in frames]
        return known

    def _make_dict(self, frame: tuple[str, int, str]) -> dict[str, Any]:
        file, line, name = frame
        known = self._dicts.get((file, line, name))
        if known is None:
            known = self._dicts[file, line, name] = {"filename": file, "line": line, "name": name}
        return known


def _with_cpp(op: str, python: Sequence[PythonFrame], engine: bool) -> list[tuple[str, int, str]]:
    special = _SPECIAL.get(op)
    if special is not None:
        calls = [*_UNWIND, *special]
    else:
        stem = op.removesuffix("_data").removesuffix("_backward").removesuffix("_dense")
        camel = "".join(part.capitalize() for part in stem.split("_"))
        dispatcher = [
            ("RegisterCUDA.cpp", 0, f"at::(anonymous namespace)::wrapper_CUDA_{op}(at::Tensor const&)"),
            ("??", 0, f"at::_ops::{op}::redispatch(c10::DispatchKeySet, at::Tensor const&)"),
            ("??", 0, f"at::_ops::{op}::call(at::Tensor const&)"),
        ]
        calls = [*_UNWIND, *_EMPTY, *dispatcher]
        if engine and not python:
            calls.append(
                ("??", 0, f"torch::autograd::generated::{camel}Backward0::apply(std::vector<at::Tensor>&&)")
            )
        else:
            calls.append(
                (
                    "python_variable_methods.cpp",
                    0,
                    f"torch::autograd::THPVariable_{op}(_object*, _object*, _object*)",
                )
            )
    if engine and not python:
        return [*calls, *_ENGINE]
    if engine:
        return [*calls, python[0], _INTERPRETER[0], *_ENGINE, *python[1:]]
    if not python:
        return calls
    return [*calls, python[0], *_INTERPRETER, *python[1:]]
