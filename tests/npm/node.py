"""node and the packages of npm with which tests in JavaScript run. `scripts/test` fetches both; without them the tests are skipped and counted."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import skips  # noqa: E402

MODULES = Path(os.environ.get("LIME_NODE_MODULES", ROOT / ".cache/npm/node_modules"))
LEAST = 22  # the oldest node that the newest clients take
PACKAGES = "packages of tests/npm/package.json (scripts/test fetches them from the npm registry)"


def program():
    """The node of the packages, or that of the machine; None: there is none of version `LEAST`."""
    for node in [*MODULES.glob("node-linux-*/bin/node"), shutil.which("node")]:
        if node and os.access(node, os.X_OK) and version(node) >= LEAST:
            return str(node)
    return None


def version(node):
    said = subprocess.run([str(node), "--version"], capture_output=True, text=True).stdout.strip().lstrip("v")
    return int(said.split(".")[0]) if said[:1].isdigit() else 0


def need(test, *packages):
    """Skips the test unless there is a node that has the packages."""
    skips.need(test, all((MODULES / package).is_dir() for package in packages), PACKAGES)
    skips.need(test, program(), f"node {LEAST} or newer")


def run(test, files, environment):
    """Runs the tests of the files, which import packages by name: node looks for these beside the folders above a file."""
    with tempfile.TemporaryDirectory(prefix="tests.", dir=MODULES.parent) as folder:
        for file in sorted({beside for file in files for beside in Path(file).parent.glob("*.mjs")}):
            shutil.copy(file, folder)
        words = [program(), "--test", *(str(Path(folder) / Path(file).name) for file in files)]
        done = subprocess.run(words, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        test.assertEqual(done.returncode, 0, done.stdout)
        test.assertNotRegex(done.stdout, r"tests 0\b")
