"""The run directory: Parquet tables that each rank writes alone, and the manifest that names them."""
