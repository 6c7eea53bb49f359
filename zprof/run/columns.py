"""Columns of the tables of a run."""

import pyarrow as pa

#: Text that repeats.
name = pa.dictionary(pa.int32(), pa.string())


def column(title: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """One column; null only where it says so."""
    return pa.field(title, kind, nullable=nullable)
