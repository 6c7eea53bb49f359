"""Flight-recorder dumps of simulated jobs that hang, with a known truth.

Written without knowledge of how zprof finds the cause of a hang.
"""
