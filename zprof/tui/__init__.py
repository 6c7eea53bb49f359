"""Terminal UI of zprof: the report as screens where every number opens to its formula and inputs."""
