"""The run directory: Parquet tables a rank writes alone, and the manifest that names them."""
