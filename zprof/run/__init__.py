"""The run directory: Parquet tables that each rank writes independently, and the manifest that lists them."""
