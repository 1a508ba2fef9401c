"""Runs a program in a folder, checks that it leaves other files as they are, and reports how it
ended.
"""
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import time

HANG_S = 10  # CPU seconds of the program, or seconds of the clock while it does nothing
STILL_S = 5  # seconds without CPU time: the program does nothing
WORST_S = 300  # seconds, on a busy machine
TICKS = os.sysconf("SC_CLK_TCK")


def fingerprint(path):
    """The kind, permissions, target or contents of a file."""
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return ("link", os.readlink(path))
    if stat.S_ISREG(info.st_mode):
        if info.st_size > 1 << 28:  # a sparse file
            return ("file", info.st_mode, info.st_size, info.st_mtime_ns)
        with open(path, "rb") as f:
            return ("file", info.st_mode, hashlib.sha256(f.read()).hexdigest())
    return (stat.S_IFMT(info.st_mode), info.st_mode)


def snapshot(folder, but=()):
    """{path: fingerprint} of everything below `folder`, except everything in `but`."""
    found = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if os.path.join(root, name) not in but]
        for name in folders + files:
            path = os.path.join(root, name)
            if path not in but:
                found[path] = fingerprint(path)
    return found


def changes(before, after):
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class End:
    """How a program ended: its exit code (negative: a signal), or a hang."""

    def __init__(self, code, out, err, seconds, hangs=False):
        self.code, self.out, self.err, self.seconds, self.hangs = code, out, err, seconds, hangs


def cpu_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, IndexError, ValueError):
        return 0.0


def sleeps(pid):
    """Whether every thread waits, but not for a core or a disk, which a busy machine may delay."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii", errors="replace") as f:
                if f.read().rpartition(")")[2].split()[0] in "RD":
                    return False
        except (OSError, IndexError):
            continue
    return True


def environment(folder):
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    return env


def run(words, folder, stdin=b"", serves=False):
    """Runs a program in `folder`. A program that serves gets SIGTERM after a second, and must then
    end.
    """
    begin = time.monotonic()
    with open(folder / "stdin", "wb") as f:
        f.write(stdin)
    with open(folder / "stdin", "rb") as source, open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        try:
            process = subprocess.Popen(words, stdin=source, stdout=out, stderr=err, cwd=folder, env=environment(folder), start_new_session=True)
        except (OSError, ValueError):  # no program can be called with such words
            return None
        code, hangs = wait(process, begin, serves)
    texts = []
    for name in ("stdout", "stderr"):
        texts.append((folder / name).read_bytes()[:1 << 20].decode("utf-8", "replace"))
    for name in ("stdin", "stdout", "stderr"):
        (folder / name).unlink()
    return End(code, *texts, time.monotonic() - begin, hangs)


def wait(process, begin, serves):
    """-> (exit code, whether it hung)"""
    last_cpu, last_change, ended = 0.0, begin, False
    while True:
        try:
            code = process.wait(0.05)
            return (0 if ended and code == -signal.SIGTERM else code), False  # it ended before it began to serve
        except subprocess.TimeoutExpired:
            pass
        now, cpu = time.monotonic(), cpu_seconds(process.pid)
        if cpu > last_cpu or not sleeps(process.pid):
            last_cpu, last_change = cpu, now
        if serves and not ended and now - begin > 1:
            process.send_signal(signal.SIGTERM)
            ended, begin = True, now
        still = now - last_change > STILL_S and now - begin > HANG_S
        if cpu > HANG_S or still or now - begin > WORST_S:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, True


def clean(folder):
    """Removes the folder, whatever permissions a case has set."""
    for root, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder)
