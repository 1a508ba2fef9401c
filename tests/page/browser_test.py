"""Runs the tests in JavaScript beside it, if the machine has a browser, node and the packages of
tests/npm."""
import os
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "npm"))
import node  # noqa: E402
import skips  # noqa: E402  node.py has put its folder on the path

BROWSER = os.environ.get("LIME_CHROMIUM", "/usr/bin/chromium")


def need(test):
    """Skips the test unless everything is there."""
    skips.need(test, Path(BROWSER).exists(), "chromium (Debian: chromium)")
    node.need(test, "puppeteer-core", "axe-core")


def run(test, name, environment=None):
    """Runs a file of this folder."""
    words = [node.program(), "--test", str(HERE / name)]
    done = subprocess.run(words, env=os.environ | {"LIME_NODE_MODULES": str(node.MODULES), "LIME_CHROMIUM": BROWSER} | (environment or {}),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    test.assertEqual(done.returncode, 0, done.stdout)
    test.assertNotRegex(done.stdout, r"tests 0\b")


class BrowserTest(unittest.TestCase):
    def setUp(self):
        need(self)

    def test_the_chat_in_a_browser(self):
        run(self, "chat_test.mjs")

    def test_the_page_in_a_browser(self):
        run(self, "page_test.mjs")


if __name__ == "__main__":
    unittest.main(verbosity=2)
