"""A list of everything that a run creates on this machine. Each thing is written down before it is
created, so that it can be removed in any case: at the end, after Ctrl-C, or by `testbed/clean`
after a crash. Only things in a ledger are touched, and a process is ended only if it is still the
one that was started.
"""
import json
import os
import signal
import time
from pathlib import Path

FOLDER = Path("/run/lime-testbed")


def start_time(pid):
    """When the process began, in clock ticks since boot. None if there is no such process, or if it
    has ended and only waits to be read.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def is_running(pid, began):
    return began is not None and start_time(pid) == began


class Ledger:
    """The things of one run, oldest first, in a file of its own."""

    def __init__(self, path=None):
        FOLDER.mkdir(exist_ok=True)
        self.path = path or FOLDER / f"{os.getpid()}.jsonl"
        if path is None:
            self.path.unlink(missing_ok=True)
            self.write({"owner": os.getpid(), "began": start_time(os.getpid())})

    def write(self, entry):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def entries(self):
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # the machine went down while this line was written
                continue
        return found

    def owner_runs(self):
        return any(is_running(e["owner"], e["began"]) for e in self.entries() if "owner" in e)

    def add_process(self, pid):
        self.write({"pid": pid, "began": start_time(pid)})

    def add_namespace(self, name):
        self.write({"netns": name})

    def add_cgroup(self, path):
        self.write({"cgroup": str(path)})

    def remove_all(self, run_command):
        """Ends the processes, then removes groups and namespaces, newest first. Returns the things
        that could not be removed.
        """
        entries = self.entries()
        end_processes([(e["pid"], e["began"]) for e in entries if "pid" in e])
        left = []
        for entry in reversed(entries):
            if "cgroup" in entry and not remove_cgroup(Path(entry["cgroup"])):
                left.append(entry["cgroup"])
            if "netns" in entry and Path("/run/netns", entry["netns"]).exists():
                if run_command(["ip", "netns", "delete", entry["netns"]]) != 0:
                    left.append(entry["netns"])
        if not left:
            self.path.unlink(missing_ok=True)
        return left


def end_processes(processes, patience_s=5.0):
    """Sends SIGTERM to each (pid, began), then SIGKILL to the remaining ones."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, began in processes:
            if is_running(pid, began):
                os.kill(pid, number)
        until = time.monotonic() + patience_s
        while time.monotonic() < until and any(is_running(*p) for p in processes):
            time.sleep(0.02)


def remove_cgroup(path):
    """A group can be removed a moment after its last process has ended."""
    for _ in range(100):
        try:
            path.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(0.02)
    return False


def abandoned():
    """The ledgers whose owners have ended."""
    if not FOLDER.is_dir():
        return []
    ledgers = [Ledger(path) for path in sorted(FOLDER.glob("*.jsonl"))]
    return [ledger for ledger in ledgers if not ledger.owner_runs()]
