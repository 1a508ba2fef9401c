"""Many short requests by several clients, many of which leave. None may stay without its answer, and the server may not grow."""
import random
import threading
import time

import wire
from models import Models
from processes import Service
from serve_case import chat_body

SIZES = ["--layers", "1", "--hidden", "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "32", "--intermediate", "64", "--vocab", "272", "--positions", "512"]
CLIENTS = 12
MOST_GROWTH = 8 << 20
MOST_PROBLEMS = 20
SCHEMAS = [{"type": "boolean"}, {"enum": ["a", "b"]}, {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}]


class Client(threading.Thread):
    """One request after another, on a connection that it keeps while it can."""

    def __init__(self, soak, number):
        super().__init__(daemon=True)
        self.soak, self.random, self.wire = soak, random.Random(f"{soak.seed} {number}"), None

    def run(self):
        kinds = [self.health, self.tokens, self.scored, self.chat, self.stream, self.stream, self.by_schema, self.wrong, self.unknown,
                 self.leaves_stream, self.leaves_stream, self.leaves_early, self.resets]
        while self.soak.takes_one():
            kind = self.random.choice(kinds)
            try:
                kind()
            except Exception as error:  # whatever it is, the request has no answer
                self.soak.add_problem(f"{kind.__name__}: {error!r}")
                self.leave()
        self.leave()

    def connected(self):
        if self.wire is None:
            self.wire = wire.Connection(self.soak.url)
        return self.wire

    def leave(self):
        if self.wire is not None:
            self.wire.close()
        self.wire = None

    def expect(self, status, method, path, body=None):
        self.connected().request(method, path, body)
        answer = self.wire.answer()
        if answer.status != status:
            raise AssertionError(repr(answer))
        if answer.headers.get("connection", "").lower() == "close":
            self.leave()
        return answer.json()

    def body(self, **more):
        return chat_body("".join(self.random.choices("abcdefgh ", k=self.random.randrange(1, 100))), max_tokens=self.random.randrange(1, 6), seed=self.random.randrange(2**32), temperature=1) | more

    # ---- Requests with an answer

    def health(self):
        self.expect(200, "GET", "/health")

    def tokens(self):
        self.expect(200, "POST", "/tokenize", {"content": "a" * self.random.randrange(1000)})

    def scored(self):
        self.expect(200, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 0, "echo": True, "logprobs": 1})

    def chat(self):
        self.expect(200, "POST", "/v1/chat/completions", self.body(n=self.random.choice([1, 1, 3]), logprobs=self.random.random() < 0.2))

    def by_schema(self):
        schema = self.random.choice(SCHEMAS)
        self.expect(200, "POST", "/v1/chat/completions", self.body(max_tokens=60, ignore_eos=False, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}))

    def wrong(self):
        self.expect(400, "POST", "/v1/chat/completions", self.body(temperature=7))

    def unknown(self):
        self.expect(404, "GET", f"/v1/models/{self.random.randrange(10**9)}")

    def stream(self):
        if not self.begun_stream():
            raise AssertionError("no [DONE]")

    def begun_stream(self, most=None):
        """Reads a stream, or its first events. Whether its end came."""
        self.connected().request("POST", "/v1/chat/completions", self.body(stream=True))
        head = self.wire.head()
        if head.status != 200:
            raise AssertionError(repr(head))
        done = False
        for number, (_, data) in enumerate(self.wire.events(head)):
            if number == most:
                return False
            if '"error"' in data:
                raise AssertionError(data)
            if data == "[DONE]":
                done = True
        return done

    # ---- Clients that leave

    def leaves_stream(self):
        self.begun_stream(self.random.randrange(3))
        self.leave()

    def leaves_early(self):
        self.connected().request("POST", "/v1/chat/completions", self.body(max_tokens=100))
        self.leave()

    def resets(self):
        self.connected().request("POST", "/v1/chat/completions", self.body(max_tokens=100, stream=True))
        self.wire.reset()
        self.wire = None


class Soak:
    def __init__(self, service, count, seed):
        self.service, self.url, self.seed = service, service.url, seed
        self.left, self.problems, self.lock = count, [], threading.Lock()

    def takes_one(self):
        with self.lock:
            self.left -= 1
            return self.left >= 0 and len(self.problems) < MOST_PROBLEMS

    def add_problem(self, sentence):
        with self.lock:
            self.problems.append(sentence)

    def send(self, count):
        """So many requests; returns when each has its answer, and the server holds nothing of them."""
        self.left = count
        clients = [Client(self, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.await_rest()

    def await_rest(self, seconds=30):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            text = wire.call(self.url, "GET", "/metrics").body.decode()
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
            if all(float(values[name]) == 0 for name in ("lime_requests_running", "lime_requests_waiting")) and float(values["lime_http_connections"]) <= 1:
                return
        self.add_problem("the server still has requests or connections of clients that have left")


def run(count, seed):
    models = Models(SIZES)
    service = Service(models.model("hermes"), "--queue", "64", context=512, parallel=8)
    try:
        soak = Soak(service, count, seed)
        begin = time.monotonic()
        soak.send(min(count, max(20_000, count // 20)))  # caches and buffers have their size
        first = service.server.resident_bytes(), service.server.descriptors()
        soak.send(count)
        last = service.server.resident_bytes(), service.server.descriptors()
        seconds = time.monotonic() - begin
    finally:
        code = service.close()
        models.close()
    if last[0] - first[0] > MOST_GROWTH:
        soak.problems.append(f"the server has grown by {(last[0] - first[0]) / 2**20:.1f} MiB")
    if last[1] > first[1] + 1:  # the connection that asked for the metrics may still close
        soak.problems.append(f"the server has {last[1]} descriptors, and had {first[1]}")
    if code != 0:
        soak.problems.append(f"the server ended with {code}: {service.server.err.text()[-2000:]}")
    return {"requests": count, "seconds": round(seconds), "grown_bytes": last[0] - first[0], "descriptors": last[1], "problems": soak.problems}
