"""HTTP as bytes of a socket: requests that a test writes as it likes, answers read as they arrive."""
import json
import socket
import ssl
from urllib.parse import urlsplit

SECONDS = 60  # without a byte: the test has failed


class Answer:
    def __init__(self, status, headers, body=b""):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """(code, param) of an error in OpenAI's form."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"].rstrip().endswith((".", "!", "?")), error
        return error["code"], error["param"]

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:2000]!r}"


class Gone(Exception):
    """The server has closed the connection."""


class Connection:
    """One connection. `context`: an ssl.SSLContext for https. `receive_buffer`: bytes that the kernel takes before the test reads them."""

    def __init__(self, url, context=None, receive_buffer=None, seconds=SECONDS):
        place = urlsplit(url)
        self.host = place.netloc
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(seconds)
        self.socket.connect((place.hostname, place.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if place.scheme == "https":
            self.socket = (context or ssl.create_default_context()).wrap_socket(self.socket, server_hostname=place.hostname)
        self._waiting = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes with a reset instead of a good-bye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    # ---- Requests

    def send(self, data):
        self.socket.sendall(data)

    def request(self, method, path, body=None, headers=(), version="1.1"):
        """Sends a request; `body` is bytes, or an object that becomes JSON."""
        lines = [f"{method} {path} HTTP/{version}", f"Host: {self.host}"]
        given = {name.lower() for name, _ in headers}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            if "content-type" not in given:
                lines.append("Content-Type: application/json")
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))

    # ---- Answers

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise Gone()
        self._waiting += data

    def take(self, count):
        """Takes so many bytes from the socket, for whoever reads on."""
        for _ in range(count):
            self._waiting += self.socket.recv(1)

    def line(self):
        while b"\r\n" not in self._waiting:
            self._more()
        line, self._waiting = self._waiting.split(b"\r\n", 1)
        return line.decode("latin-1")

    def exactly(self, count):
        while len(self._waiting) < count:
            self._more()
        data, self._waiting = self._waiting[:count], self._waiting[count:]
        return data

    def head(self):
        """Status and headers of the next answer; `100 Continue` is skipped."""
        while True:
            version, status, *_ = self.line().split(" ", 2)
            assert version in ("HTTP/1.0", "HTTP/1.1"), version
            headers = {}
            while line := self.line():
                name, value = line.split(":", 1)
                name = name.strip().lower()
                assert name not in headers, f"{name} comes twice"
                headers[name] = value.strip()
            if status != "100":
                return Answer(int(status), headers)

    def pieces(self, answer):
        """The body in the pieces in which it comes, to its end."""
        if answer.status in (204, 304):
            return
        if answer.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(self.line().split(";")[0], 16):
                yield self.exactly(size)
                assert self.exactly(2) == b"\r\n"
            assert self.line() == ""
        elif "content-length" in answer.headers:
            yield self.exactly(int(answer.headers["content-length"]))
        else:
            try:
                while True:
                    if self._waiting:
                        data, self._waiting = self._waiting, b""
                        yield data
                    self._more()
            except Gone:
                return

    def answer(self, to_head=False):
        answer = self.head()
        if not to_head:
            answer.body = b"".join(self.pieces(answer))
        return answer

    def events(self, answer):
        """(event, data) of a stream whose head was read; a comment is (":", its text)."""
        waiting = b""
        for piece in self.pieces(answer):
            waiting += piece
            while b"\n\n" in waiting:
                text, waiting = waiting.split(b"\n\n", 1)
                yield event_of(text.decode("utf-8"))  # each event is UTF-8 by itself
        assert not waiting, f"the stream ends within an event: {waiting!r}"

    def at_end(self):
        """Whether the server closes, and sends nothing before."""
        try:
            return not self._waiting and self.socket.recv(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True


def event_of(text):
    name, data = "", []
    for line in text.split("\n"):
        if line.startswith(":"):
            return ":", line[1:].strip()
        field, _, value = line.partition(":")
        assert field in ("event", "data"), f"no field of an event: {line!r}"
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        else:
            data.append(value)
    return name, "\n".join(data)


class Stream:
    """A stream of server-sent events, from its request on. Iterating gives objects; `[DONE]`, comments and signs of life are counted."""

    def __init__(self, url, path, body, headers=(), **connection):
        self.connection = Connection(url, **connection)
        self.connection.request("POST", path, body, headers)
        self.head = self.connection.head()
        self.done = self.comments = 0
        if self.head.status != 200:
            self.head.body = b"".join(self.connection.pieces(self.head))
        self._events = self.connection.events(self.head) if self.head.status == 200 else iter(())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.connection.close()

    def named(self):
        """(event, object)"""
        for name, data in self._events:
            if name == ":":
                self.comments += 1
            elif data == "[DONE]":
                self.done += 1
            else:
                assert not self.done, "something comes behind [DONE]"
                yield name, json.loads(data)

    def __iter__(self):
        return (value for _, value in self.named())


def call(url, method, path, body=None, headers=(), **connection):
    """One request on a connection of its own."""
    with Connection(url, **connection) as wire:
        wire.request(method, path, body, [*headers, ("Connection", "close")])
        return wire.answer(to_head=method == "HEAD")
