"""What a connection may do: slow, pipelined, old, malformed, too long or encrypted requests, keys, hosts and pages."""
import json
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import wire
from serve_case import LONG, ServeCase, chat_body

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import skips  # noqa: E402

CHAT = "/v1/chat/completions"


class ConnectionsTest(ServeCase):
    over = "process"  # what is tested is the server

    def connect(self, **options):
        wired = wire.Connection(self.url, **options)
        self.addCleanup(wired.close)
        return wired

    def test_requests_of_one_connection_are_answered_in_order(self):
        wired = self.connect()
        wired.request("GET", "/health")
        wired.request("POST", CHAT, chat_body())
        wired.request("GET", "/v1/models")
        wired.request("GET", "/nowhere")
        answers = [wired.answer() for _ in range(4)]
        self.assertEqual([answer.status for answer in answers], [200, 200, 200, 404])
        self.assertEqual([list(answer.json())[0] for answer in answers], ["status", "id", "object", "error"])

    def test_a_hundred_requests_in_one_write(self):
        wired = self.connect()
        wired.send(f"GET /health HTTP/1.1\r\nHost: {wired.host}\r\n\r\n".encode() * 100)
        self.assertEqual({wired.answer().body for _ in range(100)}, {b'{"status":"ok"}'})

    def test_a_request_may_come_byte_by_byte(self):
        wired = self.connect()
        body = json.dumps(chat_body()).encode()
        text = f"POST {CHAT} HTTP/1.1\r\nHost: {wired.host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        for at in range(len(text)):
            wired.send(text[at:at + 1])
        self.assertEqual(wired.answer().status, 200)

    def test_a_body_may_come_in_chunks(self):
        wired = self.connect()
        body = json.dumps(chat_body()).encode()
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:7], body[7:])) + b"0\r\n\r\n"
        wired.send(f"POST {CHAT} HTTP/1.1\r\nHost: {wired.host}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks)
        self.assertEqual(wired.answer().status, 200)

    def test_a_client_may_ask_before_it_sends_the_body(self):
        wired = self.connect()
        body = json.dumps(chat_body()).encode()
        wired.send(f"POST {CHAT} HTTP/1.1\r\nHost: {wired.host}\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        self.assertRegex(wired.line(), "^HTTP/1.1 100 ")
        self.assertEqual(wired.line(), "")
        wired.send(body)
        self.assertEqual(wired.answer().status, 200)

    def test_old_clients_get_no_chunks_and_a_close(self):
        wired = self.connect()
        wired.request("POST", CHAT, chat_body(stream=True), version="1.0")
        answer = wired.head()
        self.assertNotIn("transfer-encoding", answer.headers)
        self.assertNotIn("content-length", answer.headers)
        events = list(wired.events(answer))
        self.assertEqual(events[-1][1], "[DONE]")
        wired = self.connect()
        wired.request("GET", "/health", version="1.0")
        self.assertEqual(wired.answer().json(), {"status": "ok"})
        self.assertTrue(wired.at_end())

    def test_malformed_requests_are_refused_and_the_connection_closed(self):
        host = self.connect().host
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        for name, text in {
            "no request line": "hello\r\n\r\n",
            "length and chunks": head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            "two lengths": head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            "a length that is none": head + "Content-Length: two\r\n\r\n{}",
            "a blank before the colon": head + "Content-Length : 2\r\n\r\n{}",
        }.items():
            with self.subTest(name):
                wired = self.connect()
                wired.send(text.encode())
                answer = wired.answer()
                self.assertEqual(answer.status, 400)
                answer.error()
                self.assertTrue(wired.at_end())

    def test_a_request_names_one_host(self):
        host = self.connect().host
        for name, hosts in (("none", ""), ("two", f"Host: {host}\r\nHost: {host}\r\n")):
            with self.subTest(name):
                wired = self.connect()
                wired.send(f"GET /health HTTP/1.1\r\n{hosts}\r\n".encode())
                self.assertEqual(wired.answer().status, 400)

    def test_a_header_of_100_kb_is_431_and_the_client_sees_it(self):
        for name, headers in (("long", f"X-Long: {'a' * 100_000}\r\n"), ("many", "".join(f"X-{i}: a\r\n" for i in range(101)))):
            with self.subTest(name):
                wired = self.connect()
                wired.send(f"GET /health HTTP/1.1\r\nHost: {wired.host}\r\n{headers}\r\n".encode())
                answer = wired.answer()
                self.assertEqual((answer.status, answer.error()[0]), (431, "headers_too_large"))
                self.assertTrue(wired.at_end())

    def test_a_body_above_the_bound_is_413_and_the_client_sees_it(self):
        wired = self.connect()
        wired.request("POST", CHAT, b" " * (17 << 20))
        answer = wired.answer()
        self.assertEqual((answer.status, answer.error()[0]), (413, "request_too_large"))

    def test_a_prompt_of_1_mb_is_refused_in_less_than_a_second(self):
        for path, body in ((CHAT, chat_body("a" * 1_000_000)), ("/v1/completions", {"prompt": "a" * 1_000_000}), ("/v1/responses", {"input": "a" * 1_000_000})):
            took = []
            for _ in range(3):  # the machine may be busy with other tests
                begin = time.monotonic()
                answer = self.call("POST", path, body)
                took.append(time.monotonic() - begin)
                self.assertEqual((answer.status, answer.error()[0]), (400, "context_length_exceeded"))
            self.assertLess(min(took), 1)

    def test_headers_that_do_not_come_are_408(self):
        """Many such clients at once, and the server answers others meanwhile."""
        slow = [self.connect() for _ in range(60)]
        for wired in slow:
            wired.send(f"GET /health HTTP/1.1\r\nHost: {wired.host}\r\nX-Slow".encode())
        begin = time.monotonic()
        self.assertEqual(self.call("GET", "/health").status, 200)
        self.assertEqual(self.chat()["usage"]["completion_tokens"], 8)
        for wired in slow:
            answer = wired.answer()
            self.assertEqual((answer.status, answer.error()[0]), (408, "request_timeout"))
            self.assertTrue(wired.at_end())
        self.assertLess(time.monotonic() - begin, 20)

    def test_a_body_that_does_not_come_is_408(self):
        wired = self.connect()
        wired.send(f"POST {CHAT} HTTP/1.1\r\nHost: {wired.host}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode())
        self.assertEqual(wired.answer().status, 408)


class SlowReaderTest(ServeCase):
    """A step takes a millisecond, so that tokens go out one by one and the answer is longer than all buffers between server and reader."""

    over, flags = "process", ("--pace", "1")

    def test_a_reader_of_a_byte_a_second_slows_nobody_and_loses_nothing(self):
        body = chat_body("Tell", max_tokens=1500, n=4, temperature=0.9, seed=3)
        expected = [choice["message"]["content"] for choice in self.post(CHAT, body)["choices"]]
        alone = self.chat(max_tokens=400)["lime"]["timings"]["ms_per_token"]
        slow = self.stream(CHAT, body, receive_buffer=4096)
        over = threading.Event()

        def read_slowly():
            while not over.wait(1):
                slow.connection.take(1)

        reader = threading.Thread(target=read_slowly)
        reader.start()
        try:
            beside = [self.chat(max_tokens=400)["lime"]["timings"]["ms_per_token"] for _ in range(8)]
        finally:
            over.set()
            reader.join()
        said = [""] * 4
        for chunk in slow:
            for choice in chunk["choices"]:
                said[choice["index"]] += choice["delta"].get("content") or ""
        self.assertEqual(said, expected)
        alone = max(alone, self.chat(max_tokens=400)["lime"]["timings"]["ms_per_token"])  # the machine may be busier than before
        self.assertLess(min(beside), 2 * alone + 1)

    @unittest.skipUnless(LONG, "takes a minute")
    def test_a_reader_that_takes_nothing_for_a_minute_has_left(self):
        cancelled = 'lime_generations_total{finish="cancelled"}'
        before = self.metrics()[cancelled]
        stuck = self.stream(CHAT, chat_body(max_tokens=1900, n=4), receive_buffer=4096)
        self.await_metric(cancelled, before + 1, seconds=90)
        stuck.close()


class AccessTest(ServeCase):
    over = "process"
    flags = ("--api-key", "one", "--cors-origin", "https://chat.example", "--hostname", "lime.example")

    def test_all_but_health_and_the_page_needs_a_key(self):
        for method, path, body in (("GET", "/v1/models", None), ("GET", "/metrics", None), ("GET", "/lime/cluster", None), ("POST", CHAT, chat_body()),
                                   ("POST", "/tokenize", {"content": "a"}), ("GET", "/api/tags", None)):
            for headers in ([], [("Authorization", "Bearer two")], [("Authorization", "Basic one")]):
                answer = self.call(method, path, body, headers)
                self.assertEqual((answer.status, answer.headers["www-authenticate"]), (401, "Bearer"), path)
                if not path.startswith("/api/"):
                    self.assertEqual(answer.error()[0], "invalid_api_key")
            self.assertEqual(self.call(method, path, body, [("Authorization", "Bearer one")]).status, 200, path)
        for path in ("/health", "/", "/lime.js", "/lime.css"):
            self.assertEqual(self.call("GET", path).status, 200)

    def test_a_key_is_asked_for_before_the_body_is_read(self):
        wired = wire.Connection(self.url)
        self.addCleanup(wired.close)
        wired.send(f"POST {CHAT} HTTP/1.1\r\nHost: {wired.host}\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n".encode())
        self.assertEqual(wired.answer().status, 401)

    def test_keys_of_a_file_and_of_the_environment(self):
        folder = Path(tempfile.mkdtemp(prefix="lime-keys."))
        self.addCleanup(shutil.rmtree, folder)
        (folder / "keys").write_text("  first \n\nsecond\n")
        service = self.start("--api-key-file", folder / "keys", environment={"LIME_API_KEY": "third"})
        for key, status in (("first", 200), ("second", 200), ("third", 200), ("one", 200), ("fourth", 401)):
            self.assertEqual(wire.call(service.url, "GET", "/v1/models", headers=[("Authorization", f"Bearer {key}")]).status, status, key)

    def test_other_pages_may_not_call_and_those_that_may_are_told_so(self):
        preflight = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization,content-type")]
        for origin, status in (("https://chat.example", 200), ("http://localhost:3000", 200), ("http://127.0.0.1", 200), ("https://evil.example", 403), ("null", 403)):
            with self.subTest(origin):
                answer = self.call("GET", "/health", headers=[("Origin", origin)])
                self.assertEqual(answer.status, status)
                asked = self.call("OPTIONS", CHAT, headers=[("Origin", origin), *preflight])
                if status == 403:
                    self.assertNotIn("access-control-allow-origin", answer.headers)
                    self.assertNotIn("access-control-allow-origin", asked.headers)
                    continue
                self.assertEqual((answer.headers["access-control-allow-origin"], answer.headers["vary"]), (origin, "Origin"))
                self.assertIn("POST", asked.headers["access-control-allow-methods"])
                self.assertIn("authorization", asked.headers["access-control-allow-headers"])

    def test_a_page_cannot_get_here_by_rebinding_its_name(self):
        port = self.url.rsplit(":", 1)[1]
        for host, status in ((f"localhost:{port}", 200), ("lime.example", 200), ("evil.example", 403), (f"127.0.0.1.evil.example:{port}", 403)):
            with wire.Connection(self.url) as wired:
                wired.host = host
                wired.request("GET", "/health")
                self.assertEqual(wired.answer().status, status, host)


class TlsTest(ServeCase):
    over = "process"

    @classmethod
    def setUpClass(cls):
        skips.need(cls, shutil.which("openssl"), "openssl (Debian: openssl)")
        cls.folder = Path(tempfile.mkdtemp(prefix="lime-tls."))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                        "-keyout", cls.folder / "key.pem", "-out", cls.folder / "cert.pem"], check=True, stderr=subprocess.DEVNULL)
        cls.flags = ("--tls-cert", cls.folder / "cert.pem", "--tls-key", cls.folder / "key.pem", "--api-key", "one")
        super().setUpClass()
        cls.context_of_client = ssl.create_default_context(cafile=cls.folder / "cert.pem")

    def test_answers_and_streams_are_encrypted(self):
        self.assertTrue(self.url.startswith("https://"))
        key = [("Authorization", "Bearer one")]
        answer = self.call("POST", CHAT, chat_body(), key, context=self.context_of_client)
        self.assertEqual(answer.status, 200)
        stream = self.stream(CHAT, chat_body(), headers=key, context=self.context_of_client)
        self.assertTrue(list(stream))
        self.assertEqual(stream.done, 1)

    def test_old_versions_are_refused(self):
        old = ssl.create_default_context(cafile=self.folder / "cert.pem")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.call("GET", "/health", context=old)

    def test_a_client_that_speaks_plainly_is_closed(self):
        plain = wire.Connection(self.url.replace("https", "http"))
        self.addCleanup(plain.close)
        plain.request("GET", "/health")
        with self.assertRaises((wire.Gone, ConnectionError, ValueError, AssertionError)):
            self.assertEqual(plain.answer().status, 200)

    def test_curl_with_a_key(self):
        skips.need(self, shutil.which("curl"), "curl (Debian: curl)")
        words = ["curl", "--silent", "--show-error", "--fail-with-body", "--cacert", self.folder / "cert.pem", "--max-time", "60"]
        listed = subprocess.run([*words, "-H", "Authorization: Bearer one", f"{self.url}/v1/models"], capture_output=True, check=True).stdout
        self.assertEqual(json.loads(listed)["object"], "list")
        streamed = subprocess.run([*words, "--no-buffer", "-H", "Authorization: Bearer one", "-H", "Content-Type: application/json",
                                   "-d", json.dumps(chat_body(stream=True)), f"{self.url}{CHAT}"], capture_output=True, check=True).stdout
        self.assertTrue(streamed.endswith(b"data: [DONE]\n\n"))
        refused = subprocess.run([*words, f"{self.url}/v1/models"], capture_output=True)
        self.assertEqual((refused.returncode, json.loads(refused.stdout)["error"]["code"]), (22, "invalid_api_key"))


class CurlTest(ServeCase):
    """What curl does by itself: HTTP/2 offers, Expect, uploads from stdin."""

    over = "process"

    def curl(self, *words, text=b""):
        skips.need(self, shutil.which("curl"), "curl (Debian: curl)")
        done = subprocess.run(["curl", "--silent", "--show-error", "--max-time", "60", *words], input=text, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_large_body_from_stdin(self):
        body = json.dumps(chat_body("a" * 1900)).encode()
        for more in ((), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue"), ("--http1.0",), ("--http2",)):
            answer = json.loads(self.curl(*more, "-H", "Content-Type: application/json", "--data-binary", "@-", f"{self.url}{CHAT}", text=body))
            self.assertEqual(answer["choices"][0]["finish_reason"], "length", more)

    def test_head_has_the_headers_of_get_and_no_body(self):
        said = self.curl("--head", f"{self.url}/v1/models").decode()
        self.assertRegex(said, r"^HTTP/1.1 200 ")
        self.assertRegex(said.lower(), r"(?m)^content-type: application/json")


if __name__ == "__main__":
    unittest.main(verbosity=2)
