"""Network namespaces: one for each device, and a hub with the bridge that joins them and the address of the coordinator.

    device 0: eth0 ── tbf ─┐            tbf at both ends of every device's link: what it sends is shaped in its own namespace, what it
    device 1: eth0 ── tbf ─┼─ bridge    receives on its port of the bridge
                           └─ 10.77.0.1, the coordinator
"""
import subprocess
from pathlib import Path

PREFIX = "10.77.0."
BURST_BYTES = 1600  # one frame; a larger burst would let a hidden state through at once, at any rate


def call(*words):
    """Runs a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def shape(namespace, interface, mbit, burst=BURST_BYTES):
    """Limits the traffic that leaves `interface` with tbf. Replaces an earlier limit."""
    call("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "tbf", "rate", f"{mbit * 1e6:.0f}bit",
         "burst", str(burst), "limit", "1000000")


class Network:
    """Thread: any, one at a time. Everything here ends with its namespaces."""

    def __init__(self, ledger, tag):
        self.ledger = ledger
        self.tag = tag
        self.hub = self.add_namespace("hub")
        call("ip", "-n", self.hub, "link", "add", "name", "hub0", "type", "bridge")
        call("ip", "-n", self.hub, "addr", "add", PREFIX + "1/24", "dev", "hub0")
        call("ip", "-n", self.hub, "link", "set", "hub0", "up")

    def add_namespace(self, suffix):
        name = f"{self.tag}{suffix}"
        self.ledger.add_namespace(name)
        call("ip", "netns", "add", name)
        call("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def add_device(self, index):
        """(namespace, address) of a new device. Its link is not limited yet."""
        name, port, address = self.add_namespace(f"d{index}"), f"d{index}", f"{PREFIX}{10 + index}"
        call("ip", "-n", self.hub, "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        call("ip", "-n", self.hub, "link", "set", port, "master", "hub0", "up")
        call("ip", "-n", name, "addr", "add", address + "/24", "dev", "eth0")
        call("ip", "-n", name, "link", "set", "eth0", "up")
        return name, address

    def shape_device(self, index, mbit, burst=BURST_BYTES):
        shape(f"{self.tag}d{index}", "eth0", mbit, burst)
        shape(self.hub, f"d{index}", mbit, burst)


def inside(namespace):
    """The words that start a command within the namespace. Not `ip netns exec`, which hides the
    cgroups.
    """
    return ["nsenter", f"--net={Path('/run/netns', namespace)}"]


def interface_bytes(namespace):
    """(received, sent) of eth0, with all headers."""
    words = inside(namespace) + ["cat", "/proc/net/dev"]
    for line in call(*words).splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "eth0":
            fields = rest.split()
            return int(fields[0]), int(fields[8])
    raise RuntimeError(f"{namespace} has no eth0")


def count_sent(namespace, address):
    """From now on counts all bytes that eth0 sends to one peer, with headers, in a class of its
    own. Slows nothing.
    """
    tc = ["tc", "-n", namespace]
    call(*tc, "qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "2")
    for number in ("1:1", "1:2"):
        call(*tc, "class", "add", "dev", "eth0", "parent", "1:", "classid", number, "htb", "rate", "10gbit", "quantum", "60000")
    call(*tc, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "u32", "match", "ip", "dst", address, "flowid", "1:1")


def counted(namespace):
    """The bytes since count_sent."""
    classes = call("tc", "-n", namespace, "-s", "class", "show", "dev", "eth0")
    ours = classes[classes.index("class htb 1:1 "):]
    return int(ours[ours.index("Sent ") + 5:].split()[0])
