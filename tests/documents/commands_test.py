"""docs/reference/commands.md lists the commands and flags that the built programs have, and no others, in their words."""
import os
import unittest
from pathlib import Path

import commands

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/commands.md"


class CommandsPageTest(unittest.TestCase):
    maxDiff = None

    @unittest.skipUnless("LIME_BIN" in os.environ, "LIME_BIN names no folder of built programs")
    def test_the_page_has_the_flags_of_the_programs(self):
        folder = Path(os.environ["LIME_BIN"])
        names = commands.commands_in(commands.help_of(folder / "lime"))
        self.assertIn("run", names)
        programs = {f"lime {name}": commands.sentences_in(commands.help_of(folder / "lime", name)) for name in names}
        programs["limed"] = commands.sentences_in(commands.help_of(folder / "limed"))
        self.assertIn(("--model", "-m"), programs["lime run"])
        self.assertEqual(list(commands.faults(PAGE.read_text(), programs)), [])


HELP = """Work
Usage: lime work [OPTIONS] model

Positionals:
  model TEXT REQUIRED         A folder

Options:
  -h,--help                   Print this help message and exit
  -n,--steps INT:INT in [1 - 4096]=2
                              How many
  --tokens,--context INT=2048 Context, --steps apart
  --name-of-30-letters TEXT=a Name
  --json                      JSON that `lime` prints
                              in one line
"""
PAGE_TEXT = """## lime work
| Flag | Value | Default | Meaning |
|---|---|---|---|
| `--steps`, `-n` | number | `2` | How many. |
| `--tokens`, `--context` | tokens | `2048` | Context, `--steps` apart. At most 4096. |
| `--name-of-30-letters` | text | `a` | Name. |
| `--json` | | | [JSON](json.md) that `lime` prints in one line. |

## Behind it
| `--other` | | | Of no command. |
"""


class MadePageTest(unittest.TestCase):
    def faults_with(self, page):
        return list(commands.faults(page, {"lime work": commands.sentences_in(HELP)}))

    def test_a_page_that_agrees_has_no_faults(self):
        self.assertEqual(self.faults_with(PAGE_TEXT), [])

    def test_a_flag_without_a_line_is_found(self):
        self.assertEqual(self.faults_with(PAGE_TEXT.replace("| `--json` | | | [JSON](json.md) that `lime` prints in one line. |\n", "")), ["lime work: --json is not on the page"])

    def test_a_line_without_a_flag_is_found(self):
        page = PAGE_TEXT.replace("| `--json` |", "| `--gone` | | | Gone. |\n| `--json` |")
        self.assertEqual(self.faults_with(page), ["lime work: --gone is on the page, and the program does not have it"])

    def test_another_default_is_found(self):
        self.assertEqual(self.faults_with(PAGE_TEXT.replace("`2048`", "`4096`")),
                         ['lime work: --context --tokens has the default "2048", and the page says "4096"'])

    def test_other_words_are_found(self):
        self.assertEqual(self.faults_with(PAGE_TEXT.replace("| Name. |", "| The name. |")),
                         ['lime work: --name-of-30-letters is "Name" in --help, and the page says "The name."'])

    def test_a_command_may_share_the_flags_of_another_except_some(self):
        page = PAGE_TEXT.replace("## Behind it", "## lime walk\nIt takes every flag of `lime work` except `--steps` and `--json`. It is slow.\n\n## Behind it")
        flags = commands.sentences_in(HELP)
        shared = {names: flags[names] for names in flags if names not in (("--steps", "-n"), ("--json",))}
        self.assertEqual(len(shared), 2)
        self.assertEqual(list(commands.faults(page, {"lime work": flags, "lime walk": shared})), [])
        self.assertEqual(list(commands.faults(page, {"lime work": flags, "lime walk": flags})),
                         ["lime walk: --json is not on the page", "lime walk: --steps -n is not on the page"])

    def test_a_row_may_refer_to_the_row_of_another_command(self):
        page = PAGE_TEXT.replace("## Behind it", "## lime walk\n| `--json` | | | As in `lime work`. Not here. |\n\n## Behind it")
        flags = commands.sentences_in(HELP)
        json = {("--json",): flags[("--json",)]}
        self.assertEqual(list(commands.faults(page, {"lime work": flags, "lime walk": json})), [])
        self.assertEqual(len(list(commands.faults(page, {"lime work": flags, "lime walk": {("--json",): ("", "Other")}}))), 1)

    def test_another_short_name_is_found(self):
        self.assertEqual(len(self.faults_with(PAGE_TEXT.replace("`-n`", "`-s`"))), 2)

    def test_a_command_without_a_section_and_a_section_without_a_command_are_found(self):
        self.assertEqual(self.faults_with(PAGE_TEXT.replace("## lime work", "## lime walk")),
                         ["lime walk: is no command", "lime work: is not on the page"])

    def test_a_section_may_have_the_flags_of_another(self):
        page = PAGE_TEXT.replace("## Behind it", "## lime walk\nIt takes every flag of `lime work`, and:\n\n| `--far` | | | Far. |\n\n## Behind it")
        flags = commands.sentences_in(HELP)
        self.assertEqual(list(commands.faults(page, {"lime work": flags, "lime walk": flags | {("--far",): ("", "Far")}})), [])

    def test_a_row_has_a_sentence_and_comes_once(self):
        for page in (PAGE_TEXT.replace("| [JSON](json.md) that `lime` prints in one line. |", "| |"), PAGE_TEXT.replace("| `--json` |", "| `--json` | | | [JSON](json.md) that `lime` prints in one line. |\n| `--json` |")):
            with self.subTest(page), self.assertRaises(ValueError):
                self.faults_with(page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
