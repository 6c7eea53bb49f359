"""Record training code and check it against its test's limits, for the zprof pytest plugin.

The package does not depend on pytest, and is imported only when a test uses it.
"""
