"""Virtual devices with a limed in each. A context manager, which removes everything that it made,
however it ends.
"""
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from virtual import cgroups, network
from virtual.ledger import Ledger, end_processes, start_time

PORT = 7001
GROUP_NICE = -15


def interrupt(*_):
    """Handles a request to end like Ctrl-C."""
    raise KeyboardInterrupt


class VirtualDevice:
    """One device: a namespace, a pair of control groups, a limed."""

    def __init__(self, spec, index, cluster):
        self.spec, self.index = spec, index
        self.namespace, self.address = cluster.network.add_device(index)
        self.groups = cgroups.make_groups(cluster.ledger, f"{cluster.tag}-d{index}")
        self.log = cluster.folder / f"{spec.name}.log"
        self.process = None

    def words(self):
        """The words that start a command within this device."""
        return network.inside(self.namespace) + cgroups.inside(self.groups)

    def log_since(self, offset):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            file.seek(offset)
            return file.read()

    def log_size(self):
        return self.log.stat().st_size

    def cpu_seconds(self):
        """CPU time of the daemon, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0


class VirtualCluster:
    """`devices`: ScaledDevices. `folder`: for logs, pace profiles and cluster.toml. `model`: the
    model's folder, which all devices read.
    """

    def __init__(self, devices, folder, model, bin_folder):
        self.specs, self.folder, self.model, self.bin = devices, Path(folder), Path(model), Path(bin_folder)
        self.tag = f"lt{os.getpid()}"
        self.disk = cgroups.disk_of(self.model)
        self.devices = []
        self.limed_flags = []  # in addition to the flags of every daemon
        self.core_each = False  # every daemon runs on one core, which other daemons may share

    def __enter__(self):
        self.on_term = signal.signal(signal.SIGTERM, interrupt)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger()
        try:
            self.network = network.Network(self.ledger, self.tag)
            for index, spec in enumerate(self.specs):
                self.devices.append(VirtualDevice(spec, index, self))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        signal.signal(signal.SIGTERM, self.on_term)
        left = self.ledger.remove_all(lambda words: subprocess.run(words, check=False).returncode)
        if left:
            print("these could not be removed; run testbed/clean:", ", ".join(left), flush=True)

    def start_daemons(self, paces, memory_limits):
        """`paces`: the profile objects; None: as fast as the machine. `memory_limits`: hard limits
        in bytes, by device; None: no limit.
        """
        for device, pace, limit in zip(self.devices, paces, memory_limits):
            if limit is not None:
                device.groups.limit_memory(limit)
            device.groups.reset_peak()
            self.start_daemon(device, pace)
        for device in self.devices:
            self.await_log([device], [0], "listens on port", 60)

    def start_daemon(self, device, pace):
        words = device.words() + self.on_core(device.index) + [str(self.bin / "limed"), "--name", device.spec.name, "--listen", f"{device.address}:{PORT}", "--insecure",
                                  "--threads", "1"] + self.limed_flags
        if pace is not None:
            profile = self.folder / f"{device.spec.name}.pace.json"
            profile.write_text(json.dumps(pace, indent=1))
            words += ["--pace", str(profile)]
        with open(device.log, "wb") as log:
            device.process = self.start(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def on_core(self, index):
        """The words that keep a command on this device's core."""
        cores = sorted(os.sched_getaffinity(0))
        return ["taskset", "--cpu-list", str(cores[index % len(cores)])] if self.core_each else []

    def start(self, words, **options):
        """Starts a process of this cluster with priority over all other work of the machine. Each
        process has a scheduling group of its own, and the group has the nice value, because nice
        values of processes do not count between groups.
        """
        process = subprocess.Popen(words, start_new_session=True, **options)
        self.ledger.add_process(process.pid)
        group = Path(f"/proc/{process.pid}/autogroup")
        if group.exists():
            group.write_text(str(GROUP_NICE))
        return process

    def stop_daemons(self):
        end_processes([(d.process.pid, start_time(d.process.pid)) for d in self.devices if d.process is not None])
        for device in self.devices:
            if device.process is not None:
                device.process.wait()
                device.process = None

    def limit_reads(self, limited):
        """Limits every device's disk to its rate, or removes the limits."""
        for device in self.devices:
            device.groups.limit_reads(self.disk, device.spec.disk_bytes_per_second if limited else 0)

    def shape_links(self, mbit):
        for device in self.devices:
            self.network.shape_device(device.index, mbit)

    def await_log(self, devices, offsets, sentence, patience_s, alive=lambda: True):
        """Waits until all devices have logged the sentence. False if `alive` becomes false first.
        """
        until = time.monotonic() + patience_s
        waiting = list(zip(devices, offsets))
        while waiting:
            waiting = [(d, o) for d, o in waiting if sentence not in d.log_since(o)]
            if not waiting:
                break
            for device, offset in waiting:
                if device.process.poll() is not None:
                    raise RuntimeError(f"limed of {device.spec.name} ended: {device.log_since(offset)[-500:]}")
            if not alive():
                return False
            if time.monotonic() > until:
                raise RuntimeError(f"{waiting[0][0].spec.name} did not log \"{sentence}\" within {patience_s:.0f} s")
            time.sleep(0.01)
        return True

    def cluster_toml(self, memories):
        lines = ["[cluster]", 'name = "testbed"', f'model = "{self.model}"']
        for device, memory in zip(self.devices, memories):
            lines += ["[[device]]", f'name = "{device.spec.name}"', f'address = "{device.address}:{PORT}"', f'memory = "{memory}"',
                      f'weights = "{self.model}"']
        path = self.folder / "cluster.toml"
        path.write_text("\n".join(lines) + "\n")
        return path
