"""What this machine has of what zprof can use."""
