"""Three machines on one: a network namespace each, with host names and an OpenSSH server, joined by a bridge. Linux, root.

What is made is gone when the process of each namespace has ended: interfaces, mounts and addresses live in them.
"""
import os
import subprocess
from pathlib import Path

import shell

NAMES = {"192.168.1.9": "box.shelf.test", "192.168.1.10": "orin.shelf.test", "192.168.1.11": "nx.shelf.test"}


def run(*words):
    subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL)


class Namespace:
    """A network and a mount namespace, held by a process that sleeps."""

    def __init__(self):
        self._holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE)
        self._holder.stdout.readline()  # it is there
        self.pid = self._holder.pid

    def words(self, *words):
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--", *map(str, words)]

    def run(self, *words):
        run(*self.words(*words))

    def close(self):
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()


class Machines:
    """The three devices of docs/guides/cluster.md under host names; the first one is where commands are typed."""

    def __init__(self, folder, state_home):
        self._switch = Namespace()
        self._all = {}
        self._servers = []
        self._switch.run("ip", "link", "add", "shelf", "type", "bridge")
        self._switch.run("ip", "link", "set", "shelf", "up")
        hosts = Path(folder).with_name("hosts")
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for address, name in NAMES.items()))
        for number, (address, name) in enumerate(NAMES.items()):
            machine = self._all[name] = Namespace()
            run("ip", "link", "add", f"shelf{number}", "netns", self._switch.pid, "type", "veth", "peer", "name", "eth0", "netns", machine.pid)
            self._switch.run("ip", "link", "set", f"shelf{number}", "master", "shelf", "up")
            machine.run("ip", "link", "set", "lo", "up")
            machine.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")
            machine.run("mount", "--bind", hosts, "/etc/hosts")
        self.files = shell.SshFiles(folder, port=22, address="0.0.0.0", state_home=state_home)
        self.bin = self.files.bin
        for name, machine in self._all.items():
            self._servers.append(self.files.start(machine.words(), Path(folder) / f"log-{name}"))

    @property
    def words(self):
        """What stands for each word of the pages."""
        words = {f"{address}:7001": f"{name}:7001" for address, name in NAMES.items()}
        return words | {f"me@{address}": f"{shell.USER}@{name}" for address, name in NAMES.items()}

    @property
    def around(self):
        """What a shell is called through that sits at the first machine."""
        return next(iter(self._all.values())).words()

    def close(self):
        for server in self._servers:
            server.terminate()
            server.wait()
        for machine in self._all.values():
            machine.close()
        self._switch.close()


def are_possible():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--net", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0
