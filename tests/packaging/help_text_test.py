"""What --help says becomes data, man pages and completions; without the programs."""
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import completions  # noqa: E402
import help_text  # noqa: E402
import man_pages  # noqa: E402

RUN = """Generate text
Usage: lime run [OPTIONS] model

Positionals:
  model TEXT REQUIRED         Folder

Options:
  -h,--help                   Print this help message and exit
  -c,--cluster TEXT=the default cluster file
                              cluster.toml: its devices
  --steps INT:INT in [1 - 4096]=2
                              Steps to show, the last ones
  --stop ANY TEXT             End before this text
  --out TEXT Needs: --cluster Where it goes; it's a file
  --json                      Print one JSON object


Memory:
  -n,--max-tokens INT ...     Tokens to generate [of each]

Examples:
  lime run a --json           with a remark
.A line that begins with a stop.

`lime COMMAND --help` or `lime help COMMAND` tells the flags of a command.
Exit codes: 0 done.
"""
OWN = """LIME runs models.
Usage: lime [OPTIONS] SUBCOMMAND

Options:
  -h,--help                   Print this help message and exit

Subcommands:
  run                         Generate text
"""


class HelpTextTest(unittest.TestCase):
    def setUp(self):
        self.help = help_text.parse(RUN)
        self.by_name = {option.names[-1]: option for option in self.help.options()}

    def test_groups_have_their_entries(self):
        self.assertEqual([group.title for group in self.help.groups], ["Positionals", "Options", "Memory"])
        self.assertEqual((self.help.description, self.help.usage), ("Generate text", "lime run [OPTIONS] model"))
        self.assertEqual(self.help.positionals()[0].required, True)

    def test_types_and_defaults_stand_apart(self):
        found = {name: (option.type, option.default) for name, option in self.by_name.items()}
        self.assertEqual(found["--cluster"], ("TEXT", "the default cluster file"))
        self.assertEqual(found["--steps"], ("INT:INT", "2"))
        self.assertEqual(found["--stop"], ("ANY TEXT", ""))
        self.assertEqual(found["--json"], ("", ""))
        self.assertEqual(found["--max-tokens"], ("INT", ""))
        self.assertEqual(self.by_name["--cluster"].text, "cluster.toml: its devices")
        self.assertEqual(self.by_name["--cluster"].short(), ["-c"])

    def test_what_is_no_help_is_refused(self):
        with self.assertRaises(help_text.FormatError):
            help_text.parse("lime: something went wrong\n")


class ManPagesTest(unittest.TestCase):
    def test_a_page_has_flags_and_examples(self):
        page = man_pages.of_command("run", help_text.parse(RUN), "1.2")
        self.assertIn(r"\fB\-\-max\-tokens\fR \fIINT\fR", page)
        self.assertIn("lime run a \\-\\-json           with a remark", page)
        self.assertIn("\\&.A line that begins", page)
        self.assertNotIn("COMMAND \\-\\-help", page)
        self.assertIn("lime\\-run \\- Generate text\n", page)

    def test_the_page_of_the_program_names_its_commands(self):
        page = man_pages.of_lime(help_text.parse(OWN), "1.2")
        self.assertIn(r"\fBlime\-run\fR(1)", page)


class CompletionsTest(unittest.TestCase):
    def setUp(self):
        self.texts = {"": help_text.parse(OWN), "run": help_text.parse(RUN)}

    def complete(self, *words):
        """What bash offers for the last of the words."""
        line = " ".join(f"'{word}'" for word in words)
        script = (completions.bash("lime", self.texts) +
                  f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _lime; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        return subprocess.run(["bash", "-c", script], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.split()

    def test_bash_offers_commands_flags_and_files(self):
        self.assertEqual(self.complete("lime", "r"), ["run"])
        self.assertEqual(self.complete("lime", "help", ""), ["run"])
        self.assertEqual(self.complete("lime", "run", "--c"), ["--cluster"])
        self.assertEqual(self.complete("lime", "run", "--cluster", "packaging/limed.t"), ["packaging/limed.toml"])
        self.assertEqual(self.complete("lime", "run", "--steps", ""), [])
        self.assertEqual(self.complete("lime", "run", "packaging/limed.s"), ["packaging/limed.service"])

    def test_zsh_and_fish_name_every_flag(self):
        zsh, fish = completions.zsh("lime", self.texts), completions.fish("lime", self.texts)
        for option in self.texts["run"].options():
            for name in option.names:
                self.assertIn(f"*{name}[", zsh)
                self.assertIn(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}", fish)
        self.assertIn("(of each)", zsh)  # brackets would end the description
        self.assertIn("it'\\''s a file", zsh)


if __name__ == "__main__":
    unittest.main()
