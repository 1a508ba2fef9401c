"""Memory and disk limits of one virtual device, by control groups of either version."""
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def disk_of(path):
    """MAJOR:MINOR of the whole disk under `path`, as cgroup limits name it."""
    device = os.stat(path).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not node.exists():
        raise RuntimeError(f"{path} is not on a block device; choose a --work folder on a disk")
    if (node / "partition").exists():
        return (node.resolve().parent / "dev").read_text().strip()
    return f"{os.major(device)}:{os.minor(device)}"


class GroupsV1:
    """Two groups of version 1: one in the memory hierarchy, one in blkio."""

    def __init__(self, ledger, name):
        self.memory, self.disk = ROOT / "memory" / name, ROOT / "blkio" / name
        for path in self.folders():
            ledger.add_cgroup(path)
            path.mkdir()

    def folders(self):
        return [self.memory, self.disk]

    def limit_memory(self, limit):
        (self.memory / "memory.limit_in_bytes").write_text(str(limit))
        (self.memory / "memory.swappiness").write_text("0")

    def limit_reads(self, disk, bytes_per_second):
        """0: as fast as the disk reads."""
        (self.disk / "blkio.throttle.read_bps_device").write_text(f"{disk} {int(bytes_per_second)}")

    def reset_peak(self):
        (self.memory / "memory.max_usage_in_bytes").write_text("0")

    def peak(self):
        return int((self.memory / "memory.max_usage_in_bytes").read_text())

    def oom_kills(self):
        lines = (self.memory / "memory.oom_control").read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])


class GroupV2:
    """One group of version 2, in the unified hierarchy."""

    def __init__(self, ledger, name):
        for controller in ("memory", "io"):
            (ROOT / "cgroup.subtree_control").write_text("+" + controller)
        self.path = ROOT / name
        ledger.add_cgroup(self.path)
        self.path.mkdir()

    def folders(self):
        return [self.path]

    def limit_memory(self, limit):
        (self.path / "memory.max").write_text(str(limit))
        swap = self.path / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def limit_reads(self, disk, bytes_per_second):
        """0: as fast as the disk reads."""
        (self.path / "io.max").write_text(f"{disk} rbps={int(bytes_per_second) or 'max'}")

    def reset_peak(self):
        """Needs Linux 6.12 or later; on older kernels the peak is the peak of all turns."""
        try:
            (self.path / "memory.peak").write_text("0")
        except OSError:
            pass

    def peak(self):
        return int((self.path / "memory.peak").read_text())

    def oom_kills(self):
        lines = (self.path / "memory.events").read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])


def make_groups(ledger, name):
    return GroupsV1(ledger, name) if (ROOT / "memory").is_dir() else GroupV2(ledger, name)


def inside(groups):
    """The words that start a command within the groups."""
    enter = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in groups.folders())
    return ["sh", "-c", enter + 'exec "$@"', "sh"]
