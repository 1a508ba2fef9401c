#!/usr/bin/env python3
"""`lime push` over a link of a given rate, beside what a plain TCP connection carries over it in the same minutes.

Makes two network namespaces with a veth pair between them, shaped both ways by tbf, a random model of about --gb, and a limed with an empty
store; alternates a TCP transfer of the same number of bytes and a push, --rounds times; then kills a push half-way and resumes it, and flips a
bit of a stored block. Prints a table, and with --out a JSON file. Needs root. Everything it creates is removed again.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SENDER, DEVICE = "10.78.0.1", "10.78.0.2"
PORT, TCP_PORT = 7001, 7002


def run(*args, **kwargs):
    return subprocess.run([str(a) for a in args], check=True, capture_output=True, text=True, **kwargs)


class Link:
    """Two namespaces and a shaped veth pair between them."""

    def __init__(self, rate, latency_ms):
        self.names = [f"limepush{os.getpid()}{side}" for side in "ab"]
        self.ends = [f"lp{os.getpid() % 100000}{side}" for side in "ab"]
        self.rate, self.latency_ms = rate, latency_ms

    def __enter__(self):
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
            run("ip", "link", "add", self.ends[0], "netns", self.names[0], "type", "veth", "peer", "name", self.ends[1], "netns", self.names[1])
            for name, end, address in zip(self.names, self.ends, (SENDER, DEVICE)):
                run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "link", "set", end, "up")
                # Packets as they are on a wire, so that the bucket sees them one by one.
                run("nsenter", f"--net=/run/netns/{name}", "ethtool", "-K", end, "tso", "off", "gso", "off", "gro", "off") if shutil.which("ethtool") else None
                run("tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf", "rate", self.rate, "burst", "64kb", "latency", f"{self.latency_ms}ms")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def inside(self, side, *args):
        return ["nsenter", f"--net=/run/netns/{self.names[side]}", *[str(a) for a in args]]


RECEIVE = """
import socket, sys
server = socket.create_server(("%s", %d)); print("ready", flush=True)
connection, _ = server.accept(); done = 0; buffer = bytearray(1 << 20)
while True:
    got = connection.recv_into(buffer)
    if got == 0: break
    done += got
connection.close()
""" % (DEVICE, TCP_PORT)

SEND = """
import socket, sys, time
left = int(sys.argv[1]); data = b"x" * (1 << 20)
connection = socket.create_connection(("%s", %d)); begin = time.monotonic()
while left > 0:
    part = data[:min(left, len(data))]; connection.sendall(part); left -= len(part)
connection.shutdown(socket.SHUT_WR); connection.recv(1)
print(time.monotonic() - begin)
""" % (DEVICE, TCP_PORT)


def tcp_seconds(link, size):
    """Until the other end has read all of it and closed."""
    receiver = subprocess.Popen(link.inside(1, sys.executable, "-c", RECEIVE), stdout=subprocess.PIPE, text=True)
    try:
        receiver.stdout.readline()
        return float(run(*link.inside(0, sys.executable, "-c", SEND, size)).stdout)
    finally:
        receiver.kill()
        receiver.wait()


class Device:
    def __init__(self, link, bin_dir, folder):
        self.link, self.bin, self.folder = link, bin_dir, folder
        self.log = open(folder / "limed.log", "w")
        self.process = subprocess.Popen(
            link.inside(1, bin_dir / "limed", "--name", "a", "--listen", f"{DEVICE}:{PORT}", "--insecure", "--store", folder / "store"),
            stderr=self.log, stdout=self.log)
        for _ in range(600):
            if "listens on port" in (folder / "limed.log").read_text():
                return
            time.sleep(0.05)
        raise RuntimeError((folder / "limed.log").read_text())

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def push_call(link, args, folder):
    return link.inside(0, args.bin / "lime", "push", "--cluster", folder / "cluster.toml", "--model", folder / "model.store", "--all", "--insecure", "--json")


def push(link, args, folder):
    answer = run(*push_call(link, args, folder))
    return json.loads(answer.stdout)["devices"][0]


def kill_half_way(link, args, folder, size):
    process = subprocess.Popen(push_call(link, args, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = folder / "store"
    while process.poll() is None:
        stored = sum(f.stat().st_blocks * 512 for f in store.rglob("*.safetensors")) if store.exists() else 0
        if stored > size / 2:
            break
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()


def flip_a_bit(folder):
    file = sorted((folder / "store").rglob("layer_*.safetensors"))[1]
    at = random.Random(1).randrange(file.stat().st_size // 4, file.stat().st_size // 2)
    with open(file, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 4]))
    return f"{file.name} at {at}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "build/release/bin")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--latency-ms", type=float, default=50, help="longest time that a packet waits in the bucket's queue")
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=pathlib.Path, help="folder for model and store; a temporary one by default")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    args.bin = args.bin.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    folder = pathlib.Path(tempfile.mkdtemp(prefix="lime_push_", dir=args.work))
    device = None
    try:
        # 50.3 MB a layer in bf16, and 33.6 MB of embedding.
        layers = max(1, round((args.gb * 1e9 - 33.6e6) / 50.35e6))
        run(args.bin / "make_model", "--out", folder / "model", "--hidden", 1024, "--layers", layers, "--heads", 16, "--kv-heads", 16,
            "--intermediate", 6826 // 2 * 2, "--vocab", 16384, "--tie")
        run(args.bin / "lime", "prepare", folder / "model", "--out", folder / "model.store")
        shutil.rmtree(folder / "model")
        (folder / "cluster.toml").write_text(
            f'[cluster]\nname = "push"\n[[device]]\nname = "a"\naddress = "{DEVICE}:{PORT}"\nmemory = "1GiB"\n')
        with Link(args.rate, args.latency_ms) as link:
            device = Device(link, args.bin, folder)
            tcp, pushed = [], []
            size = None
            for _ in range(args.rounds):
                shutil.rmtree(folder / "store", ignore_errors=True)
                result = push(link, args, folder)
                size = result["sent_bytes"]
                pushed.append(size / result["send_seconds"])
                tcp.append(size / tcp_seconds(link, size))
                print(f"push {pushed[-1] * 8e-6:7.2f} Mbit/s   TCP {tcp[-1] * 8e-6:7.2f} Mbit/s   of {size / 1e9:.3f} GB", flush=True)
            again = push(link, args, folder)
            shutil.rmtree(folder / "store")
            kill_half_way(link, args, folder, size)
            resumed = push(link, args, folder)
            where = flip_a_bit(folder)
            mended = push(link, args, folder)
            report = {
                "rate": args.rate, "bytes": size, "push_bytes_per_second": pushed, "tcp_bytes_per_second": tcp,
                "share": statistics.median(p / t for p, t in zip(pushed, tcp)),
                "sent_when_nothing_lacks": again["sent_bytes"], "resumed_bytes": resumed["sent_bytes"],
                "flipped": where, "mended_bytes": mended["sent_bytes"],
            }
            print(f"share of TCP's rate, median of {args.rounds}: {100 * report['share']:.1f} %")
            print(f"pushed again: {again['sent_bytes']} bytes sent")
            print(f"killed half-way, pushed again: {resumed['sent_bytes'] / 1e9:.3f} GB sent")
            print(f"a bit flipped in {where}: {mended['sent_bytes'] / 1e6:.3f} MB sent")
            if args.out:
                args.out.write_text(json.dumps(report, indent=1) + "\n")
    finally:
        if device is not None:
            device.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
