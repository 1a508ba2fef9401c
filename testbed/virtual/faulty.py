"""A cluster of small daemons for tests with faults. As root, each daemon is in a namespace of its
own; else all are on loopback. Each has a supervisor that starts it again. Tests compare the
cluster's text with the text of one process.
"""
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

from virtual import cgroups, network
from virtual.ledger import Ledger, end_processes, start_time

PORT = 7301
NAMES = "abcdefgh"
GIGABIT = 1000


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Daemon:
    """One limed and its supervisor, which starts it again. Threads: the supervisor's and the
    owner's.
    """

    def __init__(self, cluster, index):
        self.cluster, self.index, self.name = cluster, index, NAMES[index]
        self.words, self.address, self.groups = [], f"127.0.0.1:{PORT + index}", None
        if cluster.network is not None:
            namespace, address = cluster.network.add_device(index)
            self.groups = cgroups.make_groups(cluster.ledger, f"{cluster.tag}-d{index}")
            self.words, self.address = network.inside(namespace) + cgroups.inside(self.groups), f"{address}:{PORT}"
        self.log = cluster.folder / f"{self.name}.log"
        self.process, self.supervised, self.starts = None, True, 0
        self.log_begins = 0  # where the lines of this process begin

    def start(self):
        words = self.words + [str(self.cluster.bin / "limed"), "--name", self.name, "--listen", self.address, "--insecure", "--threads", "1"]
        if self.cluster.paced:
            words += ["--pace", str(self.cluster.profile_of(self.name)), "--no-link-probes"]
        with open(self.log, "ab") as log:
            self.log_begins = log.tell()
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.cluster.ledger.add_process(self.process.pid)
        self.starts += 1

    def is_idle_again(self):
        """Whether it has had a plan and holds none now. A process that has just started uses less
        memory.
        """
        lines = self.log.read_bytes()[self.log_begins:].decode("utf-8", errors="replace").splitlines()
        plans = [line for line in lines if "installs epoch" in line or "has unloaded epoch" in line]
        return bool(plans) and "has unloaded epoch" in plans[-1]

    def supervise(self):
        """Until the cluster ends, starts an ended daemon again after a moment."""
        while not self.cluster.ending.wait(0.05):
            if self.process.poll() is not None and self.supervised:
                if self.cluster.ending.wait(self.cluster.random.uniform(0, 1.5)):
                    return
                self.start()

    def kill(self, number):
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def link(self, up):
        network.call("ip", "-n", self.cluster.network.hub, "link", "set", f"d{self.index}", "up" if up else "down")


class FaultyCluster:
    """A context manager, which removes everything that it made, however it ends."""

    def __init__(self, count, folder, model, bin_folder, seed=1, memory="1GiB", context=512, plan_flags=("--strategy", "pp"), memories=None, profiles=None, paced=False):
        """`plan_flags`: flags of the `lime plan` that all requests use. `memories`, `profiles`:
        exceptions for single devices, by name: {"c": "2GiB"}, {"c": {"read_bytes_per_second":
        1e9}}. `paced`: no device computes faster than its profile says, and links have the rates of
        the cluster's file.
        """
        self.count, self.folder, self.model, self.bin = count, Path(folder), Path(model), Path(bin_folder)
        self.memory, self.context, self.plan_flags = memory, context, plan_flags
        self.memories, self.profiles, self.paced = memories or {}, profiles or {}, paced
        self.random = random.Random(seed)
        self.tag = f"ls{os.getpid()}"
        self.ending = threading.Event()
        self.network, self.daemons, self.supervisors = None, [], []

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger()
        try:
            if os.geteuid() == 0:
                self.network = network.Network(self.ledger, self.tag)
            self.write_profiles()
            self.daemons = [Daemon(self, index) for index in range(self.count)]
            for daemon in self.daemons:
                daemon.start()
                self.supervisors.append(threading.Thread(target=daemon.supervise))
                self.supervisors[-1].start()
            self.write_files()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.ending.set()
        for thread in self.supervisors:
            thread.join()
        for daemon in self.daemons:
            if daemon.process is not None:
                daemon.kill(signal.SIGCONT)
        end_processes([(d.process.pid, start_time(d.process.pid)) for d in self.daemons if d.process is not None])
        left = self.ledger.remove_all(lambda words: subprocess.run(words, check=False).returncode)
        if left:
            print("these could not be removed; run testbed/clean:", ", ".join(left), flush=True)

    def profile_of(self, name):
        return self.folder / f"profile{f'-{name}' if name in self.profiles else ''}.json"

    def write_profiles(self):
        profile = {"cpu": "soak", "threads": 1, "read_bytes_per_second": 1e10, "flops": 1e10,
                   "disk": [{"read_bytes": 1048576, "depth": 8, "bytes_per_second": 1e9, "latency_ms": 0.1}]}
        (self.folder / "profile.json").write_text(json.dumps(profile))
        for name, other in self.profiles.items():
            self.profile_of(name).write_text(json.dumps(profile | other))

    def write_files(self):
        """Writes cluster.toml, and a plan that uses every device: `pp` divides the layers in
        proportion to memory.
        """
        lines = ["[cluster]", 'name = "soak"', f'model = "{self.model}"', "[[link]]", 'bandwidth = "1Gbit/s"', 'latency = "0.2ms"']
        for daemon in self.daemons:
            lines += ["[[device]]", f'name = "{daemon.name}"', f'address = "{daemon.address}"', f'memory = "{self.memories.get(daemon.name, self.memory)}"',
                      f'weights = "{self.model}"', f'profile = "{self.profile_of(daemon.name).name}"']
        self.toml = self.folder / "cluster.toml"
        self.toml.write_text("\n".join(lines) + "\n")
        self.plan = self.folder / "plan.json"
        network.call(str(self.bin / "lime"), "plan", "--model", str(self.model), "--cluster", str(self.toml), *self.plan_flags, "--tokens",
                     str(self.context), "--prompt-tokens", "64", "--time-limit", "500", "--out", str(self.plan))

    def inside(self):
        """The words that start the coordinator where it reaches the devices."""
        return network.inside(self.network.hub) if self.network is not None else []

    def run_words(self, prompt, tokens, seed):
        return [str(self.bin / "lime"), "run", "--model", str(self.model), "--prompt", prompt, "--max-tokens", str(tokens), "--context", str(self.context),
                "--json", "--hash-logits", "--ignore-eos", "--temperature", "0.8", "--seed", str(seed)]

    def alone(self, *request):
        """The answer of one process."""
        return json.loads(network.call(*self.run_words(*request), "--threads", "1"))

    def begin(self, *request, patience_s=5):
        words = self.inside() + self.run_words(*request) + ["--cluster", str(self.toml), "--plan", str(self.plan), "--insecure", "--patience",
                                                            str(patience_s)]
        run = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ledger.add_process(run.pid)
        return run

    def await_start(self, run, patience_s=30):
        """Waits until a request of the run has joined on the last device."""
        log, offset = self.daemons[-1].log, self.daemons[-1].log.stat().st_size
        until = time.monotonic() + patience_s
        while time.monotonic() < until and run.poll() is None:
            with open(log, encoding="utf-8", errors="replace") as file:
                file.seek(offset)
                if "will join in slot" in file.read():
                    return True
            time.sleep(0.01)
        return False


def differs(answer, reference):
    """The first field in which a run's answer differs from the answer of one process; None if it is
    lossless.
    """
    for field in ("token_ids", "text", "logits_xxh3", "finish_reason"):
        if answer[field] != reference[field]:
            return field
    return None
