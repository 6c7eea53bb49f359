"""The forms in which torch, NCCL, gloo and torchrun write about stuck collectives.

The patterns match text without any white space, so double blanks, lines broken by a terminal within a word,
and pages that join all lines still match. Sources, with the releases whose libraries have the text:

========================  ===========  =====================================================================
form                      torch        written by
========================  ===========  =====================================================================
speaker ``[rank3]:``      2.2 to 2.13  c10/util/Logging.cpp, MessageLogger: the global rank
group ``[PG 2 Rank 4]``   2.3          ProcessGroupNCCL::createLogPrefix: the number counts per process
group ``[PG N (D) Rank``  2.4          the same: name and description of the group, rank in the group
group ``[PG ID .. GUID``  2.5 to 2.13  the same: GUID is the name, ID counts per process
timeout                   2.1 to 2.13  WorkNCCL::checkTimeout
counters                  2.3 to 2.13  ProcessGroupNCCL::watchdogHandler; "last started" from 2.13
signal                    2.3 to 2.13  ProcessGroupNCCL::heartbeatMonitor: counters of the default group
terminated                2.1 to 2.13  ProcessGroupNCCL::ncclCommWatchdog
stack                     2.6 to 2.13  the same, with the flight recorder on: lines without a prefix
stuck watchdog            2.3 to 2.13  ProcessGroupNCCL::heartbeatMonitor
call                      NCCL 2.10+   src/enqueue.cc: opCount, hexadecimal, counted per communicator
communicator              NCCL 2.10+   src/init.cc: "comm P rank R nranks N ... Init COMPLETE"
connection                2.1 to 2.13  gloo/transport/tcp: names an address, and no rank
ending                    2.1 to 2.13  torch/distributed/elastic: local and global rank, exit code
========================  ===========  =====================================================================

The rank in ``[Rank 3]`` before "Watchdog caught" is that of the first group that wrote a line in its process
(the prefix is a static of WorkNCCL::logPrefix), so it identifies a rank only where nothing else does.
"""

import re

#: Each line that may be evidence contains one of these; the search for them selects the lines to read.
ANCHORS = (
    b"WorkNCCL",
    b"NCCL work",
    b"NCCL INFO",
    b"GroupNCCL",
    b"atchdog",
    b"[PG ",
    b"exitcode",
    b"gloo/transport",
    b"local_rank",
)
#: A line with one of these does not continue a record.
HEAD = re.compile(
    rb"\[rank\d{1,7}\]:(?: ?\[[EWIF]\d{0,4} [^\]\n]{0,80}\])?"
    rb"|\[[EWIF]\d{0,4} [^\]\n]{0,60}\.cpp:\d{1,6}\]"
    rb"|\b[EWIF]\d{4} [\d:.]{8,16} +\d{1,10} [^\]\n]{1,200}:\d{1,6}\]"
    rb"|(?<![\w.-])[\w.-]{1,100}:\d{1,10}:\d{1,10} \[\d{1,4}\] "
    rb"|terminate called|  what\(\):"
)
_SPEAKER = rb"\[rank(?P<speaker>\d{1,7})\]:?"
_GROUP = (
    rb"\[PG(?:ID(?P<pg_id>\d{1,9})PGGUID(?P<pg_guid>[^\[\]()]{1,200}?)|(?P<pg_name>[^\[\]()]{1,200}?))"
    rb"(?:\((?P<pg_description>[^\[\]()]{0,200})\))?Rank(?P<pg_rank>\d{1,7})\]"
)
_IN_GROUP = rb"\[Rank(?P<work_rank>\d{1,7})\]"
_TIMEOUT = (
    rb"Watchdogcaughtcollectiveoperationtimeout:WorkNCCL\(SeqNum=(?P<t_sequence>\d{1,18}),OpType=(?P<t_kind>\w{1,60}),"
    rb"(?:NumelIn=(?P<t_inputs>\d{1,20}),NumelOut=(?P<t_outputs>\d{1,20})|TensorShape=[^()]{0,200}),"
    rb"Timeout\(ms\)=(?P<t_timeout>\d{1,18})\)"
)
_COUNTERS = (
    rb"(?:(?P<c_detected>detectedbywatchdogatwork)(?:sequenceid)?:|TimeoutatNCCLwork:)(?P<c_sequence>\d{1,18}),?(?:PGstatus:)?"
    rb"lastenqueued(?:NCCL)?work:(?P<c_enqueued>-?\d{1,20}),"
    rb"(?:laststarted(?:NCCL)?work:-?\d{1,20},)?"
    rb"lastcompleted(?:NCCL)?work:(?P<c_completed>-?\d{1,20})(?P<c_end>[^\d\n]?)"
)
_SIGNAL = (
    rb"Received(?:adumpsignal(?:duetoacollectivetimeout)?from|aglobaldumpsignalfrom|atimeoutsignalfrom|"
    rb"aglobaltimeoutfrom)(?:(?P<s_own>thislocalrank)|rank(?P<s_rank>\d{1,7})|(?P<s_other>anotherrank)),?and"
    rb"[^:]{0,120}Lastenqueued(?:NCCL)?work:(?P<s_enqueued>-?\d{1,20}),"
    rb"lastcompleted(?:NCCL)?work:(?P<s_completed>-?\d{1,20})(?P<s_end>[^\d\n]?)"
)
_STUCK = (
    rb"(?P<stuck>watchdoggotstuckfor\d{1,9}seconds|CouldnotacquireGILwithin|"
    rb"monitoringthreaddetectsnoheartbeat)"
)
_PROCESS = rb"(?P<host>[\w.-]{1,100}):(?P<pid>\d{1,10}):\d{1,10}\[(?P<device>\d{1,4})\]"
_CALL = (
    rb"NCCLINFO(?P<o_kind>[A-Z]\w{1,40}):opCount(?P<o_count>[0-9a-f]{1,16})sendbuff\w{1,20}recvbuff\w{1,20}"
    rb"count(?P<o_elements>\d{1,20}?)datatype\d{1,3}op\d{1,3}root-?\d{1,7}comm(?P<o_comm>0x[0-9a-f]{1,16})"
    rb"\[nranks=(?P<o_size>\d{1,7})\]"
)
_COMMUNICATOR = (
    rb"comm(?P<n_comm>0x[0-9a-f]{1,16}?)rank(?P<n_rank>\d{1,7})nranks(?P<n_size>\d{1,7})cudaDev[^-]{0,120}?"
    rb"(?:commId(?P<n_id>0x[0-9a-f]{1,16}))?-InitCOMPLETE"
)
_CONNECTION = (
    rb"(?P<connection>gloo/transport/[^\n]{0,120}(?:Connectionclosedbypeer|Connectionresetbypeer|Brokenpipe|"
    rb"Timedoutwaiting|Applicationtimeout|Socketclosed))"
)
_ENDING = (
    rb"failed\(exitcode:(?P<e_code>-?\d{1,5})\)local_rank:(?P<e_local>\d{1,6})\(pid:"
    rb"|rank:(?P<f_rank>\d{1,7})\(local_rank:(?P<f_local>\d{1,6})\)"
    rb"[^\n]{0,80}?exitcode:(?P<f_code>-?\d{1,5})\(pid:"
)
#: All tokens of a record, in order.
TOKEN = re.compile(
    b"|".join(
        (
            _SPEAKER,
            _GROUP,
            _TIMEOUT,
            _COUNTERS,
            _SIGNAL,
            _STUCK,
            _CALL,
            _COMMUNICATOR,
            _CONNECTION,
            _ENDING,
            _IN_GROUP,
            _PROCESS,
        )
    )
)
#: The head of a record of frames, and a frame, which a watchdog writes without a prefix of its own.
STACK = b"Stacktraceofthefailedcollective:"
FRAME = re.compile(rb"\s*#\d{1,4} (?P<name>.{1,500}) from (?P<file>.{1,2000}):(?P<line>\d{1,9})\s*")
MAX_FRAMES = 200
#: Text of a truncated, changed or new form: the line looks like evidence, but proves nothing.
LOOKS_LIKE_EVIDENCE = re.compile(
    rb"Watchdogcaught|watchdogatwork|lastenqueued|Lastenqueued|dumpsignaldueto|:opCount"
)
#: Parts that may be missing at the end of a record, if they are on the next lines of the file.
OPENING = re.compile(
    rb"Watchdogcaught|detectedbywatchdog|TimeoutatNCCLwork|Receivedadumpsignal|Receivedaglobal|:opCount|"
    rb"WorkNCCL\(|failed\(exitcode|\[PG|\(local_rank:|ProcessGroupNCCL\.cpp:\d|Processgroupwatchdog"
)
#: Flight-recorder names of the watchdog's operations, if they differ in more than case.
KINDS = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce_coalesced",
    "ALLGATHER": "all_gather",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "RECVANYSOURCE": "recv_any_source",
    "BARRIER": "all_reduce_barrier",
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "all_to_all",
    "Broadcast": "broadcast",
}
#: Operations whose element ratio is the group size: outputs by inputs, or inputs by outputs.
GATHERS = frozenset({"all_gather", "_all_gather_base", "all_gather_coalesced"})
SCATTERS = frozenset({"reduce_scatter", "_reduce_scatter_base"})
#: Elements of a size that was never set (-1 as size_t).
UNSET_ELEMENTS = (1 << 64) - 1
