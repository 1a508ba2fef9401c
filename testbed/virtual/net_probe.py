"""Measures a link between two namespaces. Run `net_probe.py serve ADDRESS` in one and `net_probe.py
measure ADDRESS` in the other. The second prints one JSON object: bytes_per_second of a bulk
transfer, and the median one-way time of a message with one hidden state.
"""
import json
import socket
import statistics
import sys
import time

PORT = 7999
MESSAGE = 2048
ROUNDS = 100
BULK_SECONDS = 1.5
CHUNK = bytes(64 * 1024)


def receive_exactly(link, count):
    while count > 0:
        data = link.recv(min(count, 1 << 16))
        if not data:
            raise ConnectionError("the other end closed the connection")
        count -= len(data)


def serve(address):
    """Serves one connection: rounds of a message and one byte back, then a bulk transfer whose
    bytes are counted.
    """
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        link, _ = server.accept()
        with link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(ROUNDS):
                receive_exactly(link, MESSAGE)
                link.sendall(b"!")
            first, count = None, 0
            while data := link.recv(1 << 16):
                first = first or time.monotonic()
                count += len(data)
                last = time.monotonic()
            print(json.dumps({"bytes_per_second": count / (last - first)}), flush=True)


def measure(address):
    with socket.create_connection((address, PORT), timeout=10) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rounds = []
        for _ in range(ROUNDS):
            begin = time.monotonic()
            link.sendall(bytes(MESSAGE))
            receive_exactly(link, 1)
            rounds.append(time.monotonic() - begin)
            time.sleep(0.005)  # lets the bucket fill, as it does between two tokens
        until = time.monotonic() + BULK_SECONDS
        while time.monotonic() < until:
            link.sendall(CHUNK)
    print(json.dumps({"round_trip_ms": statistics.median(rounds) * 1000}), flush=True)


if __name__ == "__main__":
    {"serve": serve, "measure": measure}[sys.argv[1]](sys.argv[2])
