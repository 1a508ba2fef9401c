"""The new reader's walk of docs/ARCHITECTURE.md leads to files, names and lines that are there."""
import unittest
from pathlib import Path

import walk

ROOT = Path(__file__).resolve().parents[2]


def text_in_tree(file):
    path = ROOT / file
    return path.read_text() if path.is_file() else None


class WalkTest(unittest.TestCase):
    maxDiff = None

    def test_every_step_is_there(self):
        page = (ROOT / "docs/ARCHITECTURE.md").read_text()
        self.assertGreaterEqual(len(walk.ways_of(page)), 4)
        self.assertEqual(list(walk.faults(page, text_in_tree)), [])

    def test_the_readme_leads_to_it(self):
        self.assertIn("docs/ARCHITECTURE.md", (ROOT / "README.md").read_text())


PAGE = """# Page

### Not of the walk

## A new reader's walk

### The line that adds

| Step | File | Name | What happens there |
|--:|---|---|---|
| 1 | `a.cc` | `A::Call` | It calls. |
| 2 | `b.cc` | `Add` | It adds. |

```cpp
sum +=
    more;
```

## Behind it
"""
FILES = {"a.cc": "void A::Call() { Add(1); }", "b.cc": "void Add(int more) { sum += more; }"}


class MadeWalkTest(unittest.TestCase):
    def faults_with(self, page=PAGE, files=None):
        return list(walk.faults(page, (FILES | (files or {})).get))

    def test_a_walk_that_is_so_has_no_faults(self):
        self.assertEqual(self.faults_with(), [])

    def test_a_file_that_is_gone_is_found(self):
        self.assertEqual(self.faults_with(files={"a.cc": None}), ["line 11: there is no a.cc"])

    def test_a_name_that_is_gone_is_found(self):
        self.assertEqual(self.faults_with(files={"a.cc": "void A::Caller() {}"}), ["line 11: a.cc has no A::Call"])

    def test_a_line_that_is_gone_is_found(self):
        self.assertEqual(self.faults_with(files={"b.cc": "void Add() {}"}),
                         ['line 7: "The line that adds" does not end with a line of b.cc'])
        self.assertEqual(len(self.faults_with(PAGE.replace("sum +=\n    more;\n", ""))), 1)

    def test_a_way_has_its_steps_in_order_and_not_more_than_four(self):
        for page in (PAGE.replace("| 2 |", "| 3 |"), PAGE.replace("| 1 | `a.cc` | `A::Call` | It calls. |\n| 2 | `b.cc` | `Add` | It adds. |\n", ""),
                     PAGE.replace("| 2 |", "".join(f"| {n} | `a.cc` | `Call` | |\n" for n in (2, 3, 4)) + "| 5 |")):
            with self.subTest(page):
                self.assertEqual(len(self.faults_with(page)), 1)

    def test_a_page_without_a_walk_is_found(self):
        self.assertEqual(len(self.faults_with("# Page\n")), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
