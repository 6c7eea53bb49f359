"""Connect zprof to other programs; each bridge is imported only when used."""
