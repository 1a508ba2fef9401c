"""Types README.md, docs/getting-started.md and docs/guides/cluster.md literally, command by command, over daemons with TLS.

The devices have small budgets, and the model is larger than the three together. What is typed is what the page says, but for the
words of `Table`: model paths, addresses, folders, budgets and how long devices are measured. A page that changes changes this test.

With LIME_PAGES=machines, as root, each device has a network namespace of its own, a host name and its own ssh server.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import machines
import shell
from pages import Command, File, steps_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import skips  # noqa: E402

BIN = Path(os.environ["LIME_BIN"])
MACHINES = os.environ.get("LIME_PAGES") == "machines"
SECONDS = 100  # the longest that one command may take on two busy cores

GUIDE, START, README = "docs/guides/cluster.md", "docs/getting-started.md", "README.md"

# What the gate itself runs, what takes an hour, and what changes the machine or needs the internet.
NOT_TYPED = {"scripts/demo", "scripts/test", "scripts/soak", "git", "sudo", "ssh-copy-id"}
# Runs until it is interrupted; tests/serve/examples_test.py types it, in docs/guides/serving.md.
SERVES = re.compile(r"(\S*/)?lime serve\b")

# 0.35 GiB of weights: more than the three budgets together.
LARGE = ["--layers", "15", "--hidden", "1024", "--heads", "8", "--kv-heads", "2", "--head-dim", "128", "--intermediate", "3072", "--vocab", "512", "--positions", "2048"]
SMALL = ["--layers", "4", "--hidden", "512", "--heads", "8", "--kv-heads", "2", "--intermediate", "1536", "--vocab", "512", "--positions", "2048"]
BUDGETS = {"6GiB": "120MiB", "5GiB": "100MiB"}


class Table:
    """The words of the pages that no test can have as they are, and what stands for each."""

    def __init__(self, folder, models, addresses):
        self._words = addresses | {"/opt/lime": f"{folder}/opt/lime", "/etc/lime": f"{folder}/etc/lime", "/home/me": f"{folder}/home/me",
                                   "/data/llama-8b": str(models / "large"), "path/to/Llama-3.2-1B": str(models / "small")}
        self._words |= {f'memory = "{page}"': f'memory = "{test}"' for page, test in BUDGETS.items()}
        if not MACHINES:
            # A minute less.
            self._words["lime profile --cluster"] = "lime profile --seconds 0.1 --link-seconds 0.1 --cluster"
            self._words["lime profile --model"] = "lime profile --seconds 0.1 --model"
        self._folder, self._stores = folder, 0

    def typed(self, text):
        """`text` of a page, with every word of the table replaced."""
        pattern = "|".join(re.escape(word) for word in sorted(self._words, key=len, reverse=True))
        text = re.sub(pattern, lambda found: self._words[found.group()], text)
        return re.sub(re.escape('"/data/lime"'), self._store, text)

    def _store(self, _):
        """Devices that are one machine have a folder each."""
        self._stores += 1
        return f'"{self._folder}/data/lime-{self._stores}"'


def program_of(command):
    return command.text.split()[0]


class DocumentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        skips.need(cls, shell.is_there(), skips.SSH)
        skips.need(cls, not MACHINES or machines.are_possible(), skips.NAMESPACES)
        cls.models = Path(tempfile.mkdtemp(prefix="lime-pages."))
        cls.addClassCleanup(shutil.rmtree, cls.models, ignore_errors=True)
        for name, sizes in (("large", LARGE), ("small", SMALL)):
            subprocess.run([BIN / "make_model", "--out", cls.models / name, *sizes], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        folder = Path(tempfile.mkdtemp(prefix="lime-page."))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        (folder / "build/release").mkdir(parents=True)
        (folder / "data").mkdir()  # where weights lie on every device; limed makes the last part of a store's path alone
        (folder / "build/release/bin").symlink_to(BIN)
        (folder / "testbed").symlink_to(ROOT / "testbed")
        for name in ("Llama-3.1-8B", "Qwen3-8B-Base"):
            (folder / name).symlink_to(self.models / "large")
        (folder / "Qwen3-0.6B-Base").symlink_to(self.models / "small")
        (folder / "prompts.txt").write_text("Once upon a time\nThe end\n")
        (folder / "text.txt").write_text("Once upon a time there was a page that was typed. " * 20)
        self.folder = folder
        devices = (machines.Machines if MACHINES else shell.Loopback)(folder / "ssh", folder / "state")
        self.addCleanup(devices.close)
        self.table = Table(folder, self.models, devices.words)
        environment = {"PATH": f"{devices.bin}:{os.environ['PATH']}", "HOME": str(folder / "home"), "LANG": "C.UTF-8",
                       "XDG_STATE_HOME": str(folder / "state")}
        (folder / "home").mkdir()
        self.shell = shell.Shell(folder, environment, devices.around)
        self.addCleanup(self.shell.close)
        self.addCleanup(self._end_daemons)

    def _end_daemons(self):
        """Whatever a page that failed has left running."""
        for file in (self.folder / "state").rglob("*.pid"):
            text = file.read_text().strip()
            if text.isdigit() and Path(f"/proc/{text}").exists():
                os.kill(int(text), 9)

    def type(self, page, command):
        text = self.table.typed(command.text)
        begin = time.monotonic()
        code, out, err = self.shell.type(text, SECONDS)
        sys.stderr.write(f"{page}:{command.line}: {time.monotonic() - begin:.1f} s: {command.text}\n")
        self.assertEqual(code, 0, f"{page}:{command.line}: {command.text}\ntyped as: {text}\nstdout:\n{out[-3000:]}\nstderr:\n{err[-3000:]}")
        self.assertNotRegex(err, r"(?m)^[EWI]\d{4} |ssl_transport_security", f"{page}:{command.line} prints a library's log")
        return out

    def follow(self, page, steps):
        """Types what the steps say; -> {text of the command: its stdout}"""
        said = {}
        for step in steps:
            if isinstance(step, File):
                (self.folder / step.name).write_text(self.table.typed(step.text))
            elif program_of(step) not in NOT_TYPED and not SERVES.match(step.text):
                said[step.text] = self.type(page, step)
        return said

    def alone(self, prompt, tokens):
        """What one process generates with the large model."""
        words = [BIN / "lime", "run", "--model", self.models / "large", "--prompt", prompt, "--max-tokens", str(tokens)]
        return subprocess.run(words, check=True, capture_output=True, text=True, errors="replace").stdout

    def expect_text_of_one_process(self, said):
        runs = [text for text in said if re.search(r"lime run --cluster", text)]
        self.assertTrue(runs)
        for text in runs:
            prompt = re.search(r'--prompt "(.*?)"', text).group(1)
            tokens = int(re.search(r"--max-tokens (\d+)", text).group(1))
            self.assertEqual(said[text], self.alone(prompt, tokens), text)

    def expect_more_weights_than_memory(self):
        weights = sum(file.stat().st_size for file in (self.models / "large").glob("*.safetensors"))
        self.assertGreater(weights, (120 + 100 + 100) << 20)  # larger than all memory together

    def steps(self, page):
        return steps_of((ROOT / page).read_text())

    def test_the_cluster_page_works(self):
        self.expect_more_weights_than_memory()
        self.expect_text_of_one_process(self.follow(GUIDE, self.steps(GUIDE)))

    def test_the_getting_started_page_works(self):
        self.expect_more_weights_than_memory()
        said = self.follow(START, self.steps(START))
        self.expect_text_of_one_process(said)
        self.expect_rows_of_a_healthy_cluster(said["lime devices"])

    def expect_rows_of_a_healthy_cluster(self, said):
        """The table of the page, but for addresses, releases and sizes."""
        page = (ROOT / START).read_text()
        shown = re.search(r"```text\n(device .*\n(?:(?:box|orin) .*\n)+)```", page).group(1)

        def columns(text):
            for pattern, word in ((r"[\w.-]+:\d+", "ADDRESS"), (r"\d+\.\d\d MiB", "SIZE"), (r"\d+\.\d+\.\d+", "RELEASE")):
                text = re.sub(pattern, word, text)
            return [line.split() for line in text.splitlines()]

        self.assertEqual(columns(said), columns(shown))

    def parts(self, page):
        """-> (steps before the first that starts a cluster, that one and the rest)"""
        steps = self.steps(page)
        up = next(i for i, step in enumerate(steps) if isinstance(step, Command) and re.match(r"(\S*/)?lime up\b", step.text))
        return steps[:up], steps[up:]

    def test_the_readme_works_on_one_machine(self):
        said = self.follow(README, self.parts(README)[0])
        self.assertTrue(any(re.search(r"lime run\b", text) for text in said))

    def test_the_readme_works_on_several_machines(self):
        # shelf.toml is the file of the guide, whose keys and programs are where that page puts
        # them.
        self.follow(GUIDE, self.parts(GUIDE)[0])
        (self.folder / "cluster.toml").rename(self.folder / "shelf.toml")
        self.expect_text_of_one_process(self.follow(README, self.parts(README)[1]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
