"""A server as its owner has it: calls that are refused, its log, keys that change, and what one client may know of another."""
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

import wire
from processes import BIN
from serve_case import ServeCase, chat_body

CHAT = "/v1/chat/completions"


class RunningTest(ServeCase):
    over = "process"

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lime-serve."))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_a_call_that_is_wrong_is_refused_with_2(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        for flags, words in ((["--host", "0.0.0.0"], "--api-key-file"), (["--host", "0.0.0.0"], "--no-auth"), (["--api-key-file", self.folder / "none"], "none"),
                             (["--tls-cert", self.folder / "cert.pem"], "--tls-key"), (["--port", "70000"], "--port"), (["--parallel", "17"], "--parallel"),
                             (["--port", taken.getsockname()[1]], str(taken.getsockname()[1])), (["--tool-format", "none-such"], "--tool-format")):
            with self.subTest(flags):
                words_of_call = [str(word) for word in (BIN / "lime", "serve", "--model", self.service.model, *flags)]
                done = subprocess.run(words_of_call, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_the_log_has_a_line_for_each_request_and_no_prompts(self):
        for flags, shows in ((("--log-json",), False), (("--log-json", "--log-prompts"), True)):
            service = self.start(*flags)
            asked = [("x-request-id", "the-one")]
            wire.call(service.url, "POST", CHAT, chat_body("a secret question"), asked)
            line = json.loads(service.server.err.await_line('"the-one"'))
            self.assertEqual((line["id"], line["method"], line["route"], line["status"], line["finish"]), ("the-one", "POST", CHAT, 200, "length"))
            self.assertEqual(line["generated_tokens"], 8)
            self.assertGreater(line["predicted_ms_per_token"], 0)
            self.assertEqual("a secret question" in service.server.err.text(), shows)
            wire.call(service.url, "POST", CHAT, chat_body(n=99), [("x-request-id", "the-wrong-one")])
            self.assertEqual(json.loads(service.server.err.await_line('"the-wrong-one"'))["status"], 400)

    def test_keys_are_read_again_after_a_hangup(self):
        keys = self.folder / "keys"
        keys.write_text("old\n")
        service = self.start("--api-key-file", keys)

        def status(key):
            return wire.call(service.url, "GET", "/v1/models", headers=[("Authorization", f"Bearer {key}")]).status

        def change(text, words):
            keys.write_text(text)
            lines = service.server.err.count()
            service.server.send_signal(signal.SIGHUP)
            service.server.err.await_line(words, since=lines)

        self.assertEqual((status("old"), status("new")), (200, 401))
        change("new\n", "again")
        self.assertEqual((status("old"), status("new")), (401, 200))
        change("\n", "stay in use")
        self.assertEqual((status("old"), status("new")), (401, 200))

    def test_prompts_of_one_key_are_not_cached_for_another(self):
        service = self.start("--api-key", "one", "--api-key", "two")

        def cached(key):
            answer = wire.call(service.url, "POST", CHAT, chat_body("What is the same for both of them is long enough for a page."), [("Authorization", f"Bearer {key}")])
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        self.assertEqual(cached("one"), 0)
        self.assertGreaterEqual(cached("one"), 16)
        self.assertEqual(cached("two"), 0)
        self.assertGreaterEqual(cached("two"), 16)

    def test_a_server_without_a_cache_says_so_in_its_counts(self):
        service = self.start("--prompt-cache", "off")
        for _ in range(2):
            usage = wire.call(service.url, "POST", CHAT, chat_body("What is long enough for a page, twice.")).json()["usage"]
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
