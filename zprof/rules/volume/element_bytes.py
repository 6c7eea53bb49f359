"""How many elements collectives carry."""

import pandas as pd

_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip


def elements(rows: pd.DataFrame) -> float:
    """Elements of all rows together; bytes whose type is not known count as floats of 4."""
    sizes = rows["dtype"].astype(str).map(_BYTES).fillna(4)
    return float((rows["bytes"] / sizes).sum())
