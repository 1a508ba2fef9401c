"""Measures the limits: direct reads inside a device's groups, and a transfer between two
namespaces.
"""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from virtual import network

READ_SECONDS = 2.0


def measure_disks(cluster):
    """Bytes per second of direct reads, on all devices at once: {name: rate}."""
    file = max(cluster.model.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    started = []
    for device in cluster.devices:
        count = max(2, int(device.spec.disk_bytes_per_second * READ_SECONDS / (1 << 20)))
        words = device.words() + ["dd", f"if={file}", "of=/dev/null", "bs=1M", f"count={count}", "iflag=direct", "status=none"]
        process = cluster.start(words)
        started.append((device, process, count << 20, time.monotonic()))
    rates = {}
    for device, process, count, begin in sorted(started, key=lambda s: s[2] / s[0].spec.disk_bytes_per_second):
        if process.wait() != 0:
            raise RuntimeError(f"dd in the groups of {device.spec.name} failed")
        rates[device.spec.name] = count / (time.monotonic() - begin)
    return rates


def measure_link(cluster, sender, receiver):
    """{"bytes_per_second": payload of a bulk transfer, "round_trip_ms": for 2 KiB and a byte back}
    between two devices.
    """
    script = [sys.executable, str(Path(__file__).with_name("net_probe.py"))]
    server = cluster.start(network.inside(receiver.namespace) + script + ["serve", receiver.address], stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    client = cluster.start(network.inside(sender.namespace) + script + ["measure", receiver.address], stdout=subprocess.PIPE, text=True)
    sent, received = client.communicate(timeout=120)[0], server.communicate(timeout=120)[0]
    return json.loads(sent) | json.loads(received)


def measure_limits(cluster):
    """Measures the disks, and the link between the first two devices. REQUIRES: limits are set,
    daemons are idle.
    """
    limits = {"disk_bytes_per_second": measure_disks(cluster)}
    if len(cluster.devices) > 1:
        limits["link"] = measure_link(cluster, cluster.devices[0], cluster.devices[1])
    return limits


def cores():
    return len(os.sched_getaffinity(0))
