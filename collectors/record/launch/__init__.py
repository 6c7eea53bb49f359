"""Start the recording of an unmodified program, in this process or in a command's children."""
