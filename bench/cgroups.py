"""A control group for one bench process: a disk read limit, a hard memory limit. cgroup v1 and v2; needs root; removed at the end."""
import os
import pathlib
import subprocess
import time

ROOT = pathlib.Path("/sys/fs/cgroup")
SPARE = "lime_bench"


class Unavailable(Exception):
    """One sentence that says what this machine lacks."""


def disk_of(path):
    """MAJOR:MINOR of the whole disk that holds `path`: limits are not taken for partitions."""
    device = os.stat(path).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    node = pathlib.Path("/sys/dev/block") / name
    if not node.exists():
        raise Unavailable(f"{path} is not on a block device, so its reads cannot be limited")
    if (node / "partition").exists():
        name = (node.resolve().parent / "dev").read_text().strip()
    return name


def _v2_root():
    for line in open("/proc/mounts"):
        fields = line.split()
        if fields[2] == "cgroup2":
            return pathlib.Path(fields[1])
    return None


def _parent(controller):
    """(folder below which a group with this controller is made, whether it is v2)."""
    if os.geteuid() != 0:
        raise Unavailable("limits need root")
    v1 = ROOT / {"io": "blkio"}.get(controller, controller)
    if (v1 / "tasks").exists():
        return v1, False
    v2 = _v2_root()
    if v2 is None or controller not in (v2 / "cgroup.controllers").read_text().split():
        raise Unavailable(f"neither version of cgroups offers the {controller} controller on this machine")
    (v2 / "cgroup.subtree_control").write_text(f"+{controller}")
    return v2, True


class Group:
    """`read_bps`: (MAJOR:MINOR, bytes per second, 0 for none). `memory`: bytes, hard, without swap; 0 counts only."""

    made = 0

    def __init__(self, read_bps=None, memory=None):
        self.folders, self.processes = {}, []
        Group.made += 1
        self.name = f"{SPARE}.{os.getpid()}.{Group.made}"
        try:
            if read_bps is not None:
                self.set_read_limit(*read_bps)
            if memory is not None:
                self.set_memory_limit(memory)
        except BaseException:
            self.close()
            raise

    def _folder(self, controller):
        parent, v2 = _parent(controller)
        folder = parent / self.name
        folder.mkdir(exist_ok=True)
        self.folders[controller] = folder
        return folder, v2

    def set_read_limit(self, device, bytes_per_second):
        folder, v2 = self._folder("io")
        if v2:
            (folder / "io.max").write_text(f"{device} rbps={bytes_per_second or 'max'}")
        else:
            (folder / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_second}")

    def set_memory_limit(self, limit):
        folder, v2 = self._folder("memory")
        if v2:
            (folder / "memory.swap.max").write_text("0")
            (folder / "memory.max").write_text(str(limit or "max"))
        else:
            (folder / "memory.swappiness").write_text("0")
            (folder / "memory.limit_in_bytes").write_text(str(limit or -1))

    def memory_now(self):
        folder = self.folders["memory"]
        v1 = folder / "memory.usage_in_bytes"
        return int((v1 if v1.exists() else folder / "memory.current").read_text())

    def memory_use(self):
        """{"peak", "limit_hits", "killed"}; the peak is None where the kernel does not keep it (v2 before 5.19)."""
        folder = self.folders["memory"]
        if (folder / "memory.max_usage_in_bytes").exists():
            control = dict(line.split() for line in (folder / "memory.oom_control").read_text().splitlines())
            return {"peak": int((folder / "memory.max_usage_in_bytes").read_text()), "limit_hits": int((folder / "memory.failcnt").read_text()),
                    "killed": int(control.get("oom_kill", 0))}
        events = dict(line.split() for line in (folder / "memory.events").read_text().splitlines())
        peak = folder / "memory.peak"
        return {"peak": int(peak.read_text()) if peak.exists() else None, "limit_hits": int(events["max"]), "killed": int(events["oom_kill"])}

    def start(self, arguments, **options):
        """A process that is inside from its first instruction on."""
        joins = "".join(f'echo $$ > "{folder}/cgroup.procs" && ' for folder in set(self.folders.values()))
        process = subprocess.Popen(["sh", "-c", joins + 'exec "$@"', "sh", *[str(a) for a in arguments]], **options)
        self.processes.append(process)
        return process

    def close(self):
        for process in self.processes:
            if process.poll() is None:  # an interrupted bench
                process.kill()
                process.wait()
        for folder in set(self.folders.values()):
            for _ in range(50):  # the last process leaves a moment after it has ended
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                print(f"{folder} could not be removed: a process is still in it")
        self.folders = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
