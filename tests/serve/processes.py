"""lime serve and limed as processes of a test: started, awaited by what they print, and ended."""
import collections
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LIME_BIN", ROOT / "build/release/bin"))
PATIENCE_S = 60
MOST_LINES = 10_000  # of a process that are kept
PROFILE = {"cpu": "test", "threads": 1, "read_bytes_per_second": 1e10, "flops": 1e10,
           "disk": [{"read_bytes": 1 << 20, "depth": 8, "bytes_per_second": 1e9, "latency_ms": 0.1}]}


class Said:
    """What a process prints. A thread reads it, so that the process never waits for its reader."""

    def __init__(self, pipe):
        self._pipe, self._lines, self._dropped, self._ended = pipe, collections.deque(), 0, False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._pipe:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                if len(self._lines) > MOST_LINES:
                    self._lines.popleft()
                    self._dropped += 1
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def count(self):
        """How many lines there have been."""
        with self._news:
            return self._dropped + len(self._lines)

    def await_line(self, words, since=0, seconds=PATIENCE_S):
        """The first line with the words, from line number `since` on."""
        until = time.monotonic() + seconds
        with self._news:
            while True:
                found = next((line for line in list(self._lines)[max(0, since - self._dropped):] if words in line), None)
                if found is not None:
                    return found
                if self._ended or not self._news.wait(max(0, until - time.monotonic())):
                    raise AssertionError(f"no line with {words!r}:\n{self.text()}")

    def text(self):
        with self._news:
            return "\n".join(self._lines)

    def close(self):
        self._reader.join(PATIENCE_S)
        self._pipe.close()


class Process:
    """A program with its two outputs."""

    def __init__(self, words, environment=None, folder=None):
        self.words = [str(word) for word in words]
        self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                        cwd=folder, env=os.environ | (environment or {}))
        self.out, self.err = Said(self.process.stdout), Said(self.process.stderr)

    @property
    def pid(self):
        return self.process.pid

    def send_signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, seconds=PATIENCE_S):
        """Its exit code; None if it lives on after so long."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self, number=signal.SIGTERM):
        """Its exit code. A process that does not end is killed, and that is an error of the test."""
        self.send_signal(number)
        code = self.wait()
        if code is None:
            self.process.kill()
            self.process.wait()
        self.out.close()
        self.err.close()
        assert code is not None, f"{self.words[:2]} has not ended:\n{self.err.text()}"
        return code

    def resident_bytes(self):
        """Without pages that are shared with files."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class HeldPort:
    """A port of loopback that the system gives to nobody else, also while no server listens on it.

    A socket is bound to it and does not listen. Linux lets another socket listen there if both have SO_REUSEADDR, which lime and limed set.
    """

    def __init__(self):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]

    def close(self):
        self._socket.close()


class Server(Process):
    """A `lime serve` that is ready. Port 0: any."""

    def __init__(self, model, *flags, port=0, environment=None):
        super().__init__([BIN / "lime", "serve", "--model", model, "--port", port, "--json", *flags], environment)
        try:
            self.ready = json.loads(self.out.await_line("{"))
            assert "url" in self.ready, self.ready
        except AssertionError as error:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"lime serve is not ready: {error}\n{self.err.text()}") from None
        self.url = self.ready["url"].rstrip("/")


class Limed(Process):
    """One device on a port of loopback."""

    def __init__(self, name, port):
        super().__init__([BIN / "limed", "--name", name, "--listen", f"127.0.0.1:{port}", "--threads", "1", "--no-link-probes"])
        self.name, self.port = name, port
        self.err.await_line("listens on port ")


class Cluster:
    """Three devices, and a plan that divides the layers among them."""

    def __init__(self, model, context, parallel, count=3):
        self.folder = Path(tempfile.mkdtemp(prefix="lime-serve."))
        self._ports, self.limed = [], []  # a device keeps its port when it is started again
        try:
            for name in "abcdefgh"[:count]:
                self._ports.append(HeldPort())
                self.limed.append(Limed(name, self._ports[-1].number))
            self._write(model, context, parallel)
        except BaseException:
            self.close()
            raise

    def _write(self, model, context, parallel):
        (self.folder / "profile.json").write_text(json.dumps(PROFILE))
        lines = ["[cluster]", 'name = "test"', f'model = "{model}"', "[[link]]", 'bandwidth = "1Gbit/s"', 'latency = "0.1ms"']
        for limed in self.limed:
            lines += ["[[device]]", f'name = "{limed.name}"', f'address = "127.0.0.1:{limed.port}"', 'memory = "1GiB"', f'weights = "{model}"',
                      'profile = "profile.json"']
        toml, plan = self.folder / "cluster.toml", self.folder / "plan.json"
        toml.write_text("\n".join(lines) + "\n")
        # `pp` divides the layers in proportion to memory; the default would use one device.
        subprocess.run([BIN / "lime", "plan", "--model", model, "--cluster", toml, "--strategy", "pp", "--tokens", str(context), "--sequences", str(parallel),
                        "--prompt-tokens", "64", "--out", plan], check=True, stdout=subprocess.DEVNULL)
        self.flags = ["--cluster", toml, "--plan", plan]

    def kill(self, index):
        """The device is gone at once, without a word."""
        self.limed[index].end(signal.SIGKILL)

    def start_again(self, index):
        self.limed[index] = Limed(self.limed[index].name, self.limed[index].port)

    def close(self):
        for limed in self.limed:
            limed.end(signal.SIGKILL)
        for port in self._ports:
            port.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Service:
    """A server, and the devices that it computes on: `over` is `process` or `cluster`. `port`: 0 for any."""

    def __init__(self, model, *flags, over="process", context=2048, parallel=4, environment=None, port=0):
        self.model, self.context, self.parallel = model, context, parallel
        self.cluster = Cluster(model, context, parallel) if over == "cluster" else None
        where = self.cluster.flags if self.cluster else ["--threads", "1"]
        self.words = (model, *where, "--context", context, "--parallel", parallel, *flags)  # of the server
        try:
            self.server = Server(*self.words, port=port, environment=environment)
        except BaseException:
            if self.cluster:
                self.cluster.close()
            raise
        self.url = self.server.url

    def close(self):
        """The server's exit code."""
        try:
            return self.server.end() if self.server.process.poll() is None else self.server.process.returncode
        finally:
            if self.cluster:
                self.cluster.close()


def lime(command, model, *flags, seconds=PATIENCE_S):
    """What `lime COMMAND` prints for the model and the flags."""
    words = [str(word) for word in (BIN / "lime", command, "--model", model, "--json", *flags)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
