"""Streams over three devices that are killed or stopped at random. Each stream goes on to its end, and has the bits of one process."""
import random
import signal
import threading
import time

import wire
from bits_test import bits_of
from models import Models
from processes import Service, lime

CLIENTS, REQUESTS = 6, 12
TOKENS = 200
MOST_PROBLEMS = 20


def body(number, **more):
    return {"prompt": f"Story {number}: " + "once upon a time " * (number + 1), "max_tokens": TOKENS, "temperature": 0.8, "seed": number, "ignore_eos": True,
            "hash_logits": True, "return_token_ids": True, **more}


def alone(model, number):
    asked = body(number)
    return bits_of(lime("run", model, "--prompt", asked["prompt"], "--max-tokens", TOKENS, "--temperature", asked["temperature"], "--seed", number, "--ignore-eos",
                            "--hash-logits", "--threads", "1"))


class Load(threading.Thread):
    """Asks until the soak ends. Some answers it does not wait for."""

    def __init__(self, soak, number):
        super().__init__(daemon=True)
        self.soak, self.random = soak, random.Random(f"{soak.seed} {number}")

    def run(self):
        while not self.soak.ended.is_set() and len(self.soak.problems) < MOST_PROBLEMS:
            number = self.random.randrange(REQUESTS)
            try:
                self.ask(number, leaves=self.random.random() < 0.1)
            except Exception as error:
                self.soak.problems.append(f"request {number}: {error!r}")

    def ask(self, number, leaves):
        text, last, recoveries = "", {}, 0
        with wire.Stream(self.soak.url, "/v1/completions", body(number, stream=True), seconds=180) as stream:
            if stream.head.status != 200:
                raise AssertionError(repr(stream.head))
            for chunk in stream:
                if "error" in chunk:
                    raise AssertionError(chunk["error"])
                for choice in chunk["choices"]:
                    text += choice["text"]
                    last |= choice
                recoveries = chunk.get("lime", {}).get("recoveries", 0)
                if leaves and len(text) > TOKENS // 2:
                    self.soak.count("left")
                    return
        if (last.get("logits_xxh3"), last.get("token_ids"), text) != self.soak.references[number]:
            raise AssertionError("other bits than those of one process")
        self.soak.count("answered")
        self.soak.count("recoveries of answers", recoveries)


class Soak:
    def __init__(self, service, references, minutes, seed):
        self.service, self.url, self.references, self.seconds, self.seed = service, service.url, references, minutes * 60, seed
        self.random, self.ended = random.Random(seed), threading.Event()
        self.problems, self.counts, self.lock = [], {}, threading.Lock()

    def count(self, name, times=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + times

    def hurt(self):
        cluster, index = self.service.cluster, self.random.randrange(3)
        if self.random.random() < 0.6:
            self.count("killed")
            cluster.kill(index)
            self.ended.wait(self.random.uniform(0, 1.5))  # how long the device is gone
            cluster.start_again(index)
        else:
            self.count("stopped")
            cluster.limed[index].send_signal(signal.SIGSTOP)
            self.ended.wait(self.random.uniform(0.2, 5))  # how long it stands still
            cluster.limed[index].send_signal(signal.SIGCONT)

    def run(self):
        clients = [Load(self, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        until = time.monotonic() + self.seconds
        while time.monotonic() < until and len(self.problems) < MOST_PROBLEMS:
            self.hurt()
            self.ended.wait(self.random.uniform(2, 8))  # until the next fault
        self.ended.set()
        for client in clients:
            client.join(300)
            if client.is_alive():
                self.problems.append("a stream has not ended")


def run(minutes, seed):
    models = Models()
    model = models.model("none")
    references = [alone(model, number) for number in range(REQUESTS)]
    service = Service(model, "--patience", "30", over="cluster", context=1024, parallel=4)
    try:
        soak = Soak(service, references, minutes, seed)
        soak.run()
    finally:
        code = service.close()
        models.close()
    if code != 0:
        soak.problems.append(f"the server ended with {code}: {service.server.err.text()[-2000:]}")
    return {"minutes": minutes, **soak.counts, "problems": soak.problems}
