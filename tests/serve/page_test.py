"""The page in a browser, answered by a server that computes: tests/page has all else of it, with a server that is made for the tests."""
import sys
import unittest

from processes import ROOT
from serve_case import ServeCase

sys.path.insert(0, str(ROOT / "tests/page"))
import browser_test  # noqa: E402

KEY = "secret-key"


class PageTest(ServeCase):
    """A step takes a while, so that Escape comes in the middle of an answer."""

    flags = ("--name", "tiny", "--pace", "25")
    environment = {}

    @classmethod
    def setUpClass(cls):
        browser_test.need(cls)
        super().setUpClass()

    def test_the_page(self):
        devices = 3 if self.over == "cluster" else 1
        browser_test.run(self, "served_page.mjs", {"LIME_URL": self.url, "LIME_MODEL": "tiny", "LIME_DEVICES": str(devices), **self.environment})


class LockedPageTest(PageTest):
    over = "process"
    flags = (*PageTest.flags, "--api-key", KEY)
    environment = {"LIME_KEY": KEY}


if __name__ == "__main__":
    unittest.main(verbosity=2)
