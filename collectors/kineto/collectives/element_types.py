"""Element types as traces spell them: C++, c10, and NCCL's metadata and names of kernels."""

import re

#: Longer names are cut: they come from a file.
_MOST_TEXT = 400
#: Torch's name and the bytes of an element.
_TYPES = {
    "float": ("float32", 4),
    "f64": ("float64", 8),
    "f32": ("float32", 4),
    "f16": ("float16", 2),
    "bf16": ("bfloat16", 2),
    "__nv_bfloat16": ("bfloat16", 2),
    "double": ("float64", 8),
    "bfloat16": ("bfloat16", 2),
    "half": ("float16", 2),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short int": ("int16", 2),
    "short": ("int16", 2),
    "signed char": ("int8", 1),
    "char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "byte": ("uint8", 1),
    "bool": ("bool", 1),
    "uint16": ("uint16", 2),
    "unsigned short": ("uint16", 2),
    "uint32": ("uint32", 4),
    "unsigned int": ("uint32", 4),
    "uint64": ("uint64", 8),
    "unsigned long": ("uint64", 8),
    "complexfloat": ("complex64", 8),
    "complex<float>": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "complex<double>": ("complex128", 16),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "float8_e8m0fnu": ("float8_e8m0fnu", 1),
    "float4_e2m1fn_x2": ("float4_e2m1fn_x2", 1),
}

#: What reduces is made for a type; what only moves bytes is made for bytes, whatever they are.
_REDUCES = re.compile(
    r"(?:nccl|rccl)\w*Kernel_(?:ReduceScatter|AllReduce|Reduce)_(?:[A-Z][A-Z0-9]*_)*"
    r"(?:Sum|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv)_(\w+?)(?:_[A-Z]\w*)?(?:\(.*)?",
    re.ASCII,
)


def reduced_type(kernel: str) -> tuple[str, int] | None:
    """Torch's name and the bytes of an element that a kernel reduces, None where its name does not say."""
    match = _REDUCES.fullmatch(kernel[:_MOST_TEXT])
    return element_type(match[1]) if match else None


def element_type(name: object) -> tuple[str, int] | None:
    """Torch's name and the bytes of an element, or None where the text is no type that is known."""
    return _TYPES.get(name.strip().lower().removeprefix("c10::")) if isinstance(name, str) else None
