"""What the tests of `lime serve` share: a server for each class of tests, and calls of it.

LIME_BIN names the built programs. LIME_SERVE_OVER is `process` (the default) or `cluster`, which is three devices on loopback: every
class whose server may compute anywhere runs with both.
"""
import os
import time
import unittest

import wire
from models import Models
from processes import Service

OVER = os.environ.get("LIME_SERVE_OVER", "process")
LONG = os.environ.get("LIME_SOAK") == "1"  # what takes a minute, too


@unittest.skipUnless("LIME_BIN" in os.environ, "LIME_BIN names no folder of built programs")
class ServeCase(unittest.TestCase):
    """`template`, `flags`, `context`, `parallel`, `port`: of the class's server."""

    maxDiff = None
    template, flags, context, parallel, over, port = "hermes", (), 2048, 8, OVER, 0

    @classmethod
    def setUpClass(cls):
        cls.models = Models()
        cls.addClassCleanup(cls.models.close)
        cls.service = cls.start()

    @classmethod
    def start(cls, *more, template=None, parallel=None, environment=None):
        """Another server of the class, which ends with it; it must end with 0."""
        service = Service(cls.models.model(template or cls.template), *cls.flags, *more, over=cls.over, context=cls.context, parallel=parallel or cls.parallel,
                          environment=environment, port=cls.port)
        cls.addClassCleanup(cls._close, service)
        return service

    @staticmethod
    def _close(service):
        has_ended = service.server.process.poll() is not None  # by its test, which has looked at the code
        code = service.close()
        assert has_ended or code == 0, f"lime serve ended with {code}:\n{service.server.err.text()}"

    @property
    def url(self):
        return self.service.url

    def call(self, method, path, body=None, headers=(), **connection):
        return wire.call(self.url, method, path, body, headers, **connection)

    def post(self, path, body, status=200, headers=()):
        """The object of an answer, which has the status."""
        answer = self.call("POST", path, body, headers)
        self.assertEqual(answer.status, status, answer)
        self.assertEqual(answer.headers["content-type"].split(";")[0], "application/json")
        return answer.json()

    def chat(self, text="Hello", **more):
        return self.post("/v1/chat/completions", chat_body(text, **more))

    def complete(self, prompt="Once", **more):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more})

    def stream(self, path, body, **connection):
        stream = wire.Stream(self.url, path, {**body, "stream": True}, **connection)
        self.addCleanup(stream.close)
        self.assertEqual(stream.head.status, 200, stream.head)
        return stream

    def metrics(self):
        """{name with labels: value}"""
        text = self.call("GET", "/metrics").body.decode()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def await_metric(self, name, least, seconds=60):
        """Until the metric has at least that value. Each look is an answer of the server."""
        until = time.monotonic() + seconds
        while self.metrics().get(name, 0) < least:
            self.assertLess(time.monotonic(), until, f"{name} stays below {least}")


def chat_body(text="Hello", **more):
    """Greedy and short unless it says otherwise; a random model may write its end token at any time."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


def begun(stream):
    """The rest of a streamed chat or completion, after its first piece of text: it has its place, and computes."""
    chunks = iter(stream)
    for chunk in chunks:
        if any(choice.get("text") or choice.get("delta", {}).get("content") for choice in chunk["choices"]):
            return chunks
    raise AssertionError("the stream has ended without a piece of text")


def text_of(chunks):
    """The content of a streamed chat's only choice."""
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
