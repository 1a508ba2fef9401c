"""Every message that docs/troubleshooting.md quotes is one that the programs print."""
import unittest
from pathlib import Path

import messages

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("common", "coordinator", "daemon", "planner", "proto")

PAGE = """# Page
`not a message`

| Message | Cause |
|---|---|
| `nobody listens on port ...` | `lime up` |
| `gives ... of ... %, run lime up` | none |
"""
SOURCE = 'Say(StrCat("nobody listens on port ", port));\nPrintF("gives %.2f of " "%d %%, run `lime up`\\n");'


class PageTest(unittest.TestCase):
    def test_every_message_is_one_of_the_programs(self):
        page = (ROOT / "docs/troubleshooting.md").read_text()
        self.assertGreater(len(list(messages.messages_in(page))), 50)
        sources = [file.read_text() for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.cc"))]
        sources += [file.read_text() for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.h"))]
        self.assertEqual(list(messages.faults(page, sources)), [])


class MadePageTest(unittest.TestCase):
    def test_a_page_that_quotes_what_is_said_has_no_faults(self):
        self.assertEqual(list(messages.faults(PAGE, [SOURCE])), [])

    def test_a_message_that_nobody_says_is_found(self):
        for said, other in (("nobody listens", "somebody listens"), (" of ", " from "), ("run `lime up`", "run `lime`")):
            with self.subTest(other):
                self.assertEqual(len(list(messages.faults(PAGE, [SOURCE.replace(said, other)]))), 1)

    def test_messages_are_the_code_of_their_column(self):
        self.assertEqual(list(messages.messages_in(PAGE)), [(6, "nobody listens on port ..."), (7, "gives ... of ... %, run lime up")])


if __name__ == "__main__":
    unittest.main()
