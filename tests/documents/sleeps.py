"""Sleeps in tests and in the programs of testbed, and the list of those that may stay.

A test waits for an event, or has a clock of its own. It does not sleep for as long as something probably takes, nor for as long as nothing
may happen. What may stay is told one by one, with its reason.
"""
import re
from collections import namedtuple
from pathlib import Path

FOLDERS = ("tests", "testbed")
OURS = ("tests/documents/sleeps.py", "tests/documents/sleeps_test.py")
# Of C++, Python and the shell; and to expect that nothing comes within a time.
SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|SleepFor|AbslInternalSleepFor|u?sleep|nanosleep|clock_nanosleep) ?\(|"
                   r"\bsleep(?: |\", *\")[0-9.$\"]|"
                   r"(?:EXPECT|ASSERT)_FALSE\(.*(?:WithTimeout|WithDeadline|wait_for|wait_until)\(")

# words: in the line, of which the file has `times`
Allowed = namedtuple("Allowed", "path words why times", defaults=(1,))

ALLOWED = (
    # ---- Polls of another process, each with a bound
    Allowed("tests/documents/shell.py", "time.sleep(0.05)", "until sshd listens, or has ended; 10 s"),
    Allowed("tests/integration/programs/loopback_sshd.h", "!Answers()", "until sshd answers; 10 s"),
    Allowed("tests/integration/programs/lime_process.h", "!Handles(lime.pid(), signal)", "until lime handles the signal, as /proc tells; 10 s"),
    Allowed("tests/integration/programs/cli_prepare_test.cc", "std::chrono::milliseconds(1)", "until lime has written the first files; half a minute"),
    Allowed("tests/integration/programs/cli_test.cc", "lime.out().size() <= 20", "until lime has written some text; half a minute"),
    Allowed("tests/integration/programs/demo_test.cc", "if (ended == 0)", "until a daemon has ended, as waitpid tells; 5 s"),
    Allowed("tests/integration/programs/demo_test.cc", "demo.out().find", "until the demo has written its plan; 100 s"),
    Allowed("tests/integration/programs/lime_process.h", "Slurp(path).find(words)", "until a process has written words; half a minute"),
    Allowed("tests/integration/programs/lime_process.h", "WorkSeconds() < seconds", "until a process has computed for so long; half a minute"),
    Allowed("tests/integration/programs/run_cluster.h", "if (ended < steps)", "until a limed has computed so many steps; a minute"),
    Allowed("tests/integration/programs/serve_test.cc", "!has_opened()", "until lime has opened a file, as /proc tells; half a minute"),
    Allowed("tests/integration/programs/up_test.cc", "Over({\"devices\"}).exit_code != 0", "until a limed answers; 20 calls"),
    Allowed("tests/integration/programs/up_test.cc", "std::chrono::milliseconds(100)", "until a limed says who uses it; 100 calls"),
    Allowed("tests/daemon/pressure_test.cc", "::rmdir(group_.c_str())", "until the kernel lets a group go, after its last process; 1 s"),
    Allowed("testbed/virtual/cluster.py", "time.sleep(0.01)", "until the logs of daemons have a sentence, or one has ended; patience_s"),
    Allowed("testbed/virtual/faulty.py", "time.sleep(0.01)", "until the log of a daemon has a sentence; patience_s"),
    Allowed("testbed/virtual/ledger.py", "time.sleep(0.02)", "until processes have ended, patience_s; until a group is gone, 2 s", times=2),

    # ---- Polls of what this process has and tells nobody, each with a bound
    Allowed("tests/waiting_threads.h", "!WaitsToBeWoken(thread)", "until the kernel says that a thread waits; 20 s"),
    Allowed("tests/waiting_threads.h", "!AreIdle()", "until the kernel says that threads wait; 20 s"),
    Allowed("tests/coordinator/serving_test.cc", "absl::SleepFor(absl::Milliseconds(5));", "until Serving::load() is what is wanted, 5 s; "
            "until lost devices are installed again, which their plan decides", times=2),
    Allowed("tests/integration/stage/stage_pressure_test.cc", "!done()", "until statistics of a stage, or of the system, are so; 20 s"),
    Allowed("tests/daemon/rpc/rpc_fixture.cc", "EpochOf(device) != -1", "until a device answers that it has no plan; 10 s"),
    Allowed("tests/daemon/rpc/rpc_test.cc", "absl::SleepFor(absl::Milliseconds(50));", "until a device has measured a link; 10 s"),
    Allowed("tests/daemon/rpc/rpc_test.cc", "absl::SleepFor(absl::Milliseconds(5));", "until a device answers that its plan is waited for, 10 s; "
            "until a load is cancelled; until a device answers that it has begun", times=3),
    Allowed("tests/daemon/rpc/measure_rpc_test.cc", "absl::SleepFor(absl::Milliseconds(5));", "a measurement that lasts until it is cancelled"),
    Allowed("tests/daemon/stage_kv_test.cc", "absl::SleepFor(absl::Milliseconds(1));", "until nobody else writes to the disk; 10 s"),
    Allowed("tests/daemon/weights/output_file_test.cc", "std::chrono::milliseconds(10)", "until a signal comes in the wait, and not before it"),
    Allowed("tests/daemon/pressure_test.cc", "reported == 0", "until the kernel tells of a stall; 10 s, and skipped where there was none"),

    # ---- Moments and delays that differ, so that more orders of events are seen. Nothing waits for
    # them
    Allowed("tests/integration/programs/calls_test.cc", "std::chrono::milliseconds(milliseconds)", "the moment of an interrupt"),
    Allowed("tests/integration/programs/cli_prepare_test.cc", "std::chrono::milliseconds(5 + 10 * i)", "the moment of a kill"),
    Allowed("tests/integration/serving_local_test.cc", "random() % 8", "the moment of a cancel"),
    Allowed("tests/integration/stage/stage_pressure_test.cc", "below(12)", "the moment at which the memory changes"),
    Allowed("tests/integration/stage/stage_cluster.h", "if (late)", "a message that is late"),
    Allowed("tests/daemon/hosted_kv_test.cc", "delays_() % 64", "a message that is late"),
    Allowed("tests/daemon/rpc/push_test.cc", "if (stop)", "a slow link, which does not end the push before it is cancelled"),
    Allowed("tests/daemon/rpc/rpc_test.cc", "absl::Microseconds(5 * epoch)", "the moment at which a coordinator goes"),

    # ---- How long a fault of a real process lasts
    Allowed("tests/integration/programs/cluster_fault_test.cc", "700ms", "a device that stands still for less than it takes to count as lost"),
    Allowed("testbed/faults", "time.sleep(5)", "a link that is down"),
    Allowed("testbed/faults", "time.sleep(6)", "a slow link or disk"),
    Allowed("testbed/faults", "time.sleep(7)", "until such a fault is over, which is timed from its begin"),
    Allowed("testbed/soak", "time.sleep(seconds)", "a daemon that stands still; a link that is down", times=2),
    Allowed("tests/testbed/virtual_test.py", "while :; do sleep 0.05; done", "a process that lasts until it is killed"),
    Allowed("tests/testbed/virtual_test.py", '["sleep", "60"]', "two processes that last until they are killed"),
    Allowed("tests/testbed/inputs_test.py", '["sleep", "1000"]', "a process that hangs"),
    Allowed("tests/testbed/inputs_test.py", "while :; do sleep 0.1; done", "a process that lasts until it is told to end"),

    # ---- Times of an experiment, which runs over real links
    Allowed("testbed/soak", "time.sleep(0.3)", "daemons give memory back a moment after a request; growth is judged over many of them"),
    Allowed("testbed/estimate", "time.sleep(0.3)", "how often the estimate of a link is written down"),
    Allowed("testbed/replan", "time.sleep(AFTER_S)", "how long after its start a run has a change of its link"),
    Allowed("testbed/virtual/net_probe.py", "time.sleep(0.005)", "the pause between two tokens, in which a link's bucket fills"),
)


def sleeps_of(root):
    """[(path, number, line)] of all sleeps below the folders."""
    found = []
    for folder in FOLDERS:
        for path in sorted((Path(root) / folder).rglob("*")):
            name = str(path.relative_to(root))
            if not path.is_file() or path.suffix in (".md", ".json", ".golden", ".txt") or name in OURS or "__pycache__" in path.parts:
                continue
            try:
                lines = path.read_text().splitlines()
            except UnicodeDecodeError:
                continue
            found += [(name, number, line.strip()) for number, line in enumerate(lines, 1) if SLEEP.search(line)]
    return found


def faults(root, allowed=ALLOWED):
    """Sleeps that no entry allows, and entries that nothing needs, one sentence each."""
    left = {entry: entry.times for entry in allowed}
    for path, number, line in sleeps_of(root):
        entry = next((e for e in allowed if left[e] > 0 and e.path == path and e.words in line), None)
        if entry is None:
            yield f"{path}:{number}: {line}: wait for an event, or use a clock of the test (tests/documents/sleeps.py)"
        else:
            left[entry] -= 1
    for entry, times in left.items():
        if times > 0:
            yield f"tests/documents/sleeps.py: {entry.path} has {times} fewer sleeps with {entry.words!r} than are allowed"
