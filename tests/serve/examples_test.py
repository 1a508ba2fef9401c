"""Types docs/guides/serving.md: its commands in order, its programs as files, its servers on ports and over devices of the test.

What is typed is what the page says, but for the words of `typed`: the model, addresses, and how a server ends.
"""
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import wire
from models import Models
from processes import BIN, ROOT, Cluster, Process

sys.path.insert(0, str(ROOT / "tests/documents"))
sys.path.insert(0, str(ROOT / "tests/npm"))
import node  # noqa: E402
import shell  # noqa: E402
import skips  # noqa: E402
from pages import File, steps_of  # noqa: E402

PAGE = "docs/guides/serving.md"
SECONDS = 60  # of one command
MODEL = "Qwen3-0.6B"
PLACE = re.compile(r"https?://(?:127\.0\.0\.1|192\.168\.1\.9):5463")


@unittest.skipUnless("LIME_BIN" in os.environ, "LIME_BIN names no folder of built programs")
class ExamplesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lime-page."))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        models = Models()
        self.addCleanup(models.close)
        (self.folder / MODEL).symlink_to(models.model("hermes"))
        (self.folder / "build/release").mkdir(parents=True)
        (self.folder / "build/release/bin").symlink_to(BIN)
        if node.MODULES.is_dir():
            (self.folder / "node_modules").symlink_to(node.MODULES)
        self.has_node = node.program() is not None and (node.MODULES / "openai").is_dir()
        self.server, self.cluster, self.url = None, None, None
        self.addCleanup(self.end_server)
        programs = f"{Path(node.program()).parent}:" if self.has_node else ""
        self.shell = shell.Shell(self.folder, {"PATH": f"{programs}{BIN}:/usr/bin:/bin:{Path(sys.executable).parent}", "HOME": str(self.folder), "LANG": "C.UTF-8"})
        self.addCleanup(self.shell.close)

    def typed(self, text):
        if self.url:
            text = PLACE.sub(self.url, text)
        return text.replace("192.168.1.9", "127.0.0.1")

    def start(self, command):
        """A server stays until the next one starts; it ends with 0."""
        self.end_server()
        words = shlex.split(self.typed(command.text).replace("\\\n", " "), comments=True)
        if "--cluster" in words:
            self.cluster = Cluster(self.folder / MODEL, 2048, 4)
            for file in self.cluster.folder.iterdir():
                shutil.copy(file, self.folder)
        self.server = Process([BIN / "lime", *words[1:], "--port", "0", "--json"], folder=self.folder)
        self.url = json.loads(self.server.out.await_line("{"))["url"].rstrip("/")

    def end_server(self):
        if self.server is not None:
            server, self.server = self.server, None
            self.assertEqual(server.end(), 0, server.err.text())
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None

    def type(self, command):
        code, out, err = self.shell.type(self.typed(command.text), SECONDS)
        where = f"{PAGE}:{command.line}: {command.text}\nstdout:\n{out[-3000:]}\nstderr:\n{err[-3000:]}"
        self.assertEqual(code, 0, where)
        self.assertNotIn('"error":{', out, where)
        return out

    def test_the_page_works(self):
        said, started = {}, 0
        for step in steps_of((ROOT / PAGE).read_text()):
            if isinstance(step, File):
                (self.folder / step.name).write_text(self.typed(step.text))
            elif step.text.startswith("lime serve"):
                self.start(step)
                started += 1
            elif not step.text.startswith("node ") or self.has_node:
                said[step.text] = self.type(step)
        self.assertGreaterEqual(started, 5)
        self.expect_one_hash(said)
        self.expect_streams(said)
        skips.need(self, self.has_node, node.PACKAGES)  # last: all else of the page works

    def expect_one_hash(self, said):
        """What the page says of `hash_logits`."""
        [completion] = [out for text, out in said.items() if "/v1/completions" in text]
        [run] = [text for text in said if "--hash-logits" in text]
        code, out, err = self.shell.type(self.typed(run), SECONDS)
        self.assertEqual(code, 0, err)
        self.assertIn(json.loads(completion)["choices"][0]["logits_xxh3"], out + err)

    def expect_streams(self, said):
        [stream] = [out for text, out in said.items() if "curl -sN" in text]
        events = [wire.event_of(text)[1] for text in stream.strip().split("\n\n")]
        self.assertEqual(events[-1], "[DONE]")
        self.assertTrue(json.loads(events[0])["choices"])

    def test_a_page_that_stops_a_server_by_its_words_is_not_typed(self):
        """The rule for what is a server is the page's own spelling."""
        commands = [step.text for step in steps_of((ROOT / PAGE).read_text()) if not isinstance(step, File)]
        self.assertFalse([text for text in commands if "lime serve" in text and not text.startswith("lime serve")])


if __name__ == "__main__":
    unittest.main(verbosity=2)
