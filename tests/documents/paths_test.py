"""Every path and link of a page leads to something, and every folder with code has a README; what does not, is found."""
import tempfile
import unittest
from pathlib import Path

import paths

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("bench", "cmake", "common", "coordinator", "daemon", "kernels", "packaging", "planner", "proto", "testbed", "tests")


class SourceTreeTest(unittest.TestCase):
    maxDiff = None

    def test_every_path_and_link_of_a_page_is_there(self):
        self.assertEqual(list(paths.faults(ROOT)), [])

    def test_every_folder_with_code_has_a_readme(self):
        folders = {path.parent for ending in ("cc", "py", "cmake") for top in TOPS for path in (ROOT / top).rglob(f"*.{ending}")}
        self.assertGreater(len(folders), 80)
        self.assertEqual([str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "README.md").exists()], [])


class MadeTreeTest(unittest.TestCase):
    def faults_with(self, line):
        made = {"docs/PAGE.md": f"# Page\n\n{line}\n", "low/base/low.h": "", "low/README.md": "", "scripts/lint": ""}
        with tempfile.TemporaryDirectory(prefix="lime-paths.") as folder:
            for path, text in made.items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_text(text)
            return list(paths.faults(folder))

    def test_paths_from_the_root_the_page_and_a_folder_are_there(self):
        for word in ("low/base/low.h", "low/base/low", "base/low.h", "low.h", "low/", "low/base", "scripts/lint", "PAGE.md", "docs/PAGE.md"):
            with self.subTest(word):
                self.assertEqual(self.faults_with(f"See `{word}`."), [])

    def test_paths_that_are_not_there_are_found(self):
        for word in ("low/base/high.h", "low/high/", "high.h", "base/high.cc", "docs/OTHER.md", "scripts/soak"):
            with self.subTest(word):
                self.assertEqual(self.faults_with(f"See `low.h` and `{word}`."), [f"docs/PAGE.md:3: `{word}` is not there"])

    def test_words_patterns_and_a_readers_files_are_no_paths(self):
        for word in ("low/NAME.h", "low/*.h", "keys/ca.key", "./cluster.toml", "/etc/lime/limed.toml", "12.5MB/s", "low", "cluster.toml"):
            with self.subTest(word):
                self.assertEqual(self.faults_with(f"See `{word}`."), [])

    def test_links_lead_to_files_folders_and_headings(self):
        for link in ("../low/README.md", "../low/", "#page", "PAGE.md#page", "https://example.org/x"):
            with self.subTest(link):
                self.assertEqual(self.faults_with(f"See [`low.h`]({link}), and `[no](link.md)`."), [])

    def test_links_that_lead_nowhere_are_found(self):
        for link in ("low/README.md", "../high/", "#page-2", "PAGE.md#other"):
            with self.subTest(link):
                self.assertEqual(self.faults_with(f"See [it]({link})."), [f"docs/PAGE.md:3: {link} leads nowhere"])


if __name__ == "__main__":
    unittest.main()
