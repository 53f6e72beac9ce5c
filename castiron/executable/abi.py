"""The run-time ABI: where each word lies in the memory that Python and generated code share.

Only numbers live here, so that the compiler (which prints code against them) and the runtime
(which fills them) can both read them without importing each other. A change of any number is a
change of ABI_VERSION. Continues in `compiler/codegen/threads.py` and in `runtime/`.
"""

ABI_VERSION = 1
WORD_BYTES = 8

# Regions: what the `region` of an operand counts. Graph inputs follow, then graph outputs.
REGION_WEIGHTS = 0
REGION_ARENA = 1
REGION_FIRST_INPUT = 2

# Context of one run: the argument of `castiron_run`. In words of eight bytes.
CTX_BASES = 0  # address of one i64 base address for each region
CTX_STEPS = 1  # address of the step records, one behind the other
CTX_NUM_STEPS = 2
CTX_TEAM = 3  # address of the team block, 0 = none
CTX_THREADS = 4  # most threads this run may use, 1 = never fork
CTX_SCRATCH = 5  # address of the scratch memory of thread 0
CTX_SCRATCH_STRIDE = 6  # bytes from one thread's scratch to the next
CTX_CRASH = 7  # address of an i64: step under way, NO_STEP outside a run; 0 = do not tell
CTX_TIMES = 8  # address of one i64 for each step, to which its ticks are added; 0 = do not time
CTX_WORDS = 9

NO_STEP = -1  # what the word at CTX_CRASH holds outside a run

# Step record. In words; operands are (region, byte offset) pairs, then come the parameters.
STEP_KERNEL = 0  # absolute address of the kernel
STEP_WORDS = 1  # length of this record
STEP_UNITS = 2  # parallel extent
STEP_GRAIN = 3  # units in one claim, 0 = never fork
STEP_NUM_OPERANDS = 4
STEP_NUM_PARAMS = 5
STEP_HEADER_WORDS = 6
OPERAND_WORDS = 2

MAX_ARGS = 96  # operands + parameters of one step, at most

# Team block: the compute threads of one process. In words; lines that different threads write
# lie 128 bytes apart, since processors fetch lines in pairs.
TEAM_SIZE = 0  # threads, the one that runs `castiron_run` included
TEAM_SPIN_TICKS = 1  # how long a wait inside a run spins before it sleeps
TEAM_STOP = 2  # i32: workers leave when it is set and nothing is left to claim
TEAM_PLACES = 3  # 1: workers are kept off the CPU of the thread that forks
TEAM_FORKER_CPU = 4  # i32: the CPU they are kept off now, -1 = none
TEAM_BUSY = 16  # i32: threads of the run that owns the team, 0 = free
TEAM_EPOCH = 32  # i32, futex of the workers: one more for every fork
TEAM_ASLEEP = 48  # i64: bit i is set while worker i sleeps
TEAM_CLAIM = 64  # i64: participants << 32 | chunks not claimed yet
TEAM_PENDING = 80  # i32, futex of the forking thread: chunks not finished yet
TEAM_JOINING = 81  # i32: 1 while the forking thread sleeps on TEAM_PENDING
TEAM_KERNEL = 96  # the step in progress, valid for whoever holds a claim
TEAM_ARGS = 97
TEAM_UNITS = 98
TEAM_GRAIN = 99
TEAM_CHUNKS = 100
TEAM_SCRATCH = 101
TEAM_SCRATCH_STRIDE = 102
TEAM_FORKS = 112  # counters, from here on
TEAM_REFUSED = 113  # runs that found the team busy and ran alone
TEAM_SLEEPS = 114  # times a worker went to sleep
TEAM_JOIN_SLEEPS = 115  # times a forking thread went to sleep
TEAM_WAKES = 116  # system calls made to wake workers
TEAM_LEFT = 117  # workers that have returned
TEAM_CPUS = 128  # the CPUs this process may use, one bit each
TEAM_CPUS_WORDS = 16
TEAM_THREAD_IDS = 144  # of worker i at word i, 0 before it has begun
TEAM_WORDS = 208
MAX_THREADS = 64  # one bit each in TEAM_ASLEEP

# Lane block: a ring of runs, served by one native thread. In bytes.
LANE_HEAD = 0  # i32: runs submitted, futex of the worker
LANE_ASLEEP = 64  # i32: 1 while the worker sleeps
LANE_TAIL = 128  # i32: runs finished
LANE_STOP = 192  # i32: the worker leaves when it is set and the ring is empty
LANE_EVENTFD = 200  # i64: file descriptor that tells the loop
LANE_SPIN_TICKS = 208  # i64: how long an empty ring is watched before the worker sleeps
LANE_LEFT = 216  # i32: 1 when the worker has returned
LANE_TOLD = 256  # i32: 1 from the write to the eventfd to the next drain
LANE_SLEEPS = 320  # i64 counters
LANE_WRITES = 328
LANE_CURRENT = 384  # function and argument under way, 0 and 0 between runs
LANE_RING = 512  # {function, argument} each
LANE_CAPACITY = 256  # a power of two
LANE_BYTES = LANE_RING + LANE_CAPACITY * 16

# Crash block: shared with the supervisor. In bytes.
CRASH_MAGIC = 0x3148534152435343  # "CSCRASH1", read as a little-endian word
CRASH_HEADER_BYTES = 64  # magic, number of slots, process id
CRASH_NUM_SLOTS = 8
CRASH_PROCESS = 16
CRASH_SLOT_BYTES = 512
CRASH_STEP = 0  # i64: the word CTX_CRASH points to
CRASH_USED = 8  # i64: 1 while a loaded model owns the slot
CRASH_IMAGE = 16  # i64: base address of its code
CRASH_DIGEST = 64  # 32 bytes: sha256 of its executable
CRASH_MODEL_BYTES = 96  # i64: length of the name
CRASH_MODEL = 104  # the name, UTF-8, cut to fit
CRASH_MODEL_ROOM = CRASH_SLOT_BYTES - CRASH_MODEL

# The probe of a core's peak in every image, and its operations in one unit per vector lane.
PEAK_SYMBOL = "castiron_peak"
PEAK_FLOPS_PER_LANE = 20
