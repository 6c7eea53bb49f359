"""Export all ranks of a run as one trace on a common clock, for ui.perfetto.dev and chrome://tracing."""
