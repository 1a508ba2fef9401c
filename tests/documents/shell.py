"""One shell for the commands of a page, and OpenSSH on loopback for those that go elsewhere."""
import getpass
import os
import select
import shutil
import socket
import subprocess
import time
from pathlib import Path

USER = getpass.getuser()
ADDRESSES = ("192.168.1.9", "192.168.1.10", "192.168.1.11")  # of the pages


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Shell:
    """A bash that types one command after another, as a user would in one terminal."""

    def __init__(self, folder, environment, around=()):
        self._said, self._done = Path(folder) / ".said", os.pipe()
        self._bash = subprocess.Popen([*around, "bash", "--noprofile", "--norc"], cwd=folder, env=environment, stdin=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[self._done[1]])
        self._bash.stdin.write(f"cd {folder}\n".encode())

    def type(self, command, timeout):
        """-> (exit code, or None for a command that did not end in `timeout` seconds, stdout, stderr)"""
        out, err = Path(f"{self._said}.out"), Path(f"{self._said}.err")
        text = f"{{\n{command}\n}} >{out} 2>{err} </dev/null {self._done[1]}>&-\necho $? >&{self._done[1]}\n"
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()
        ready, _, _ = select.select([self._done[0]], [], [], timeout)
        code = int(os.read(self._done[0], 16)) if ready else None
        return code, out.read_text(errors="replace"), err.read_text(errors="replace")

    def close(self):
        self._bash.stdin.close()
        try:
            self._bash.wait(5)
        except subprocess.TimeoutExpired:
            self._bash.kill()
            self._bash.wait()
        for end in self._done:
            os.close(end)


class SshFiles:
    """Keys and configuration of sshd, and an ssh and a scp on a PATH of their own that use them whatever words they are called with."""

    def __init__(self, folder, port, address, state_home):
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._folder / name], check=True)
        shutil.copy(self._folder / "user.pub", self._folder / "authorized_keys")
        (self._folder / "sshd_config").write_text(
            f"Port {port}\nListenAddress {address}\nHostKey {folder}/host\nPidFile none\nAuthorizedKeysFile {folder}/authorized_keys\n"
            f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
            f"SetEnv XDG_STATE_HOME={state_home}\nSubsystem sftp internal-sftp\n")
        (self._folder / "ssh_config").write_text(
            f"Host *\n  Port {port}\n  User {USER}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            f"  UserKnownHostsFile {folder}/known_hosts\n  LogLevel ERROR\n")
        self.bin = self._folder / "bin"
        self.bin.mkdir()
        for name in ("ssh", "scp"):
            (self.bin / name).write_text(f'#!/bin/sh\nexec {shutil.which(name)} -F {folder}/ssh_config "$@"\n')
            (self.bin / name).chmod(0o755)
        if os.geteuid() == 0:  # sshd of root wants an empty folder, which a machine without a running one lacks; it stays, other tests' servers use it too
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def start(self, around, log):
        """An sshd that listens, called through the words `around`."""
        with open(log, "w") as said:
            server = subprocess.Popen([*around, shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", self._folder / "sshd_config"],
                                      stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        until = time.monotonic() + 10
        while "Server listening" not in log.read_text():
            if time.monotonic() > until or server.poll() is not None:
                server.kill()
                server.wait()
                raise RuntimeError("sshd does not listen: " + log.read_text())
            time.sleep(0.05)
        return server


class Loopback:
    """All devices of the pages on this machine: a port each, and one OpenSSH server."""

    around = ()

    def __init__(self, folder, state_home):
        port = free_port()
        self._files = SshFiles(folder, port, "127.0.0.1", state_home)
        self.bin = self._files.bin
        self._server = self._files.start([], Path(folder) / "log")
        self.words = {f"{address}:7001": f"127.0.0.1:{free_port()}" for address in ADDRESSES}
        self.words |= {f"me@{address}": f"{USER}@127.0.0.1" for address in ADDRESSES}

    def close(self):
        self._server.terminate()
        self._server.wait()


def is_there():
    """Whether this machine has all that Loopback starts."""
    return all(shutil.which(name) for name in ("ssh", "scp", "ssh-keygen")) and (shutil.which("sshd") or os.path.exists("/usr/sbin/sshd"))
