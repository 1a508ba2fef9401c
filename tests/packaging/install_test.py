"""`cmake --install` into an empty folder: both programs, the unit, man pages and completions are there, and
name every flag that the programs have.

LIME_BUILD is the build folder, LIME_BIN where its programs are, LIME_CMAKE the cmake that configured it.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import skips  # noqa: E402

BIN = Path(os.environ["LIME_BIN"])
SHELLS = {"bash": "share/bash-completion/completions/{}", "zsh": "share/zsh/site-functions/_{}",
          "fish": "share/fish/vendor_completions.d/{}.fish"}


def said(program, *words):
    return subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def flags_of(text):
    """Every name of a flag at the begin of a line of --help, read without the parser that is tested."""
    lines = re.findall(r"(?m)^  (-\S+)", text)
    return sorted({name for line in lines for name in line.split(",")})


def commands_of(text):
    listed = text.split("Subcommands:\n")[1].split("\n\n")[0]
    return re.findall(r"(?m)^  ([a-z]+) ", listed)


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = Path(tempfile.mkdtemp(prefix="lime-install."))
        cls.addClassCleanup(shutil.rmtree, cls.prefix, ignore_errors=True)
        before = {path: path.stat().st_mtime_ns for path in (BIN / "lime", BIN / "limed")}
        environment = {name: value for name, value in os.environ.items() if name != "DESTDIR"}
        done = subprocess.run([os.environ.get("LIME_CMAKE", "cmake"), "--install", os.environ["LIME_BUILD"], "--prefix", cls.prefix],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        if done.returncode != 0:
            raise AssertionError(f"cmake --install: {done.stdout}")
        cls.built_anew = [path for path, when in before.items() if path.stat().st_mtime_ns != when]
        cls.texts = {"lime": said(BIN / "lime", "--help"), "limed": said(BIN / "limed", "--help")}
        cls.commands = commands_of(cls.texts["lime"])
        cls.texts |= {f"lime-{name}": said(BIN / "lime", name, "--help") for name in cls.commands}

    def page(self, name):
        return self.prefix / ("share/man/man8/limed.8" if name == "limed" else f"share/man/man1/{name}.1")

    def test_nothing_is_built(self):
        self.assertEqual(self.built_anew, [])

    def test_both_programs_start(self):
        for program in ("lime", "limed"):
            self.assertEqual(said(self.prefix / "bin" / program, "--version"), said(BIN / program, "--version"))

    def test_the_units_start_the_installed_programs(self):
        for name, call in (("limed", "limed --config"), ("lime-serve", "lime serve --config")):
            unit = (self.prefix / f"lib/systemd/system/{name}.service").read_text()
            self.assertIn(f"ExecStart={self.prefix}/bin/{call} /etc/lime/{name}.toml\n", unit)
            self.assertTrue((self.prefix / f"share/doc/lime/examples/{name}.toml").exists())
        self.assertIn("Apache License", (self.prefix / "share/doc/lime/LICENSE").read_text())

    def test_systemd_understands_the_units(self):
        skips.need(self, shutil.which("systemd-analyze"), "systemd-analyze (Debian: systemd)")
        for name in ("limed", "lime-serve"):
            done = subprocess.run(["systemd-analyze", "verify", self.prefix / f"lib/systemd/system/{name}.service"], capture_output=True, text=True)
            self.assertEqual((done.returncode, [line for line in done.stderr.splitlines() if f"{name}.service" in line]), (0, []))  # not of other units

    def test_every_command_has_a_page_that_names_every_flag(self):
        self.assertGreater(len(self.commands), 15)
        for name, text in self.texts.items():
            page = self.page(name).read_text().replace("\\-", "-")
            for flag in flags_of(text):
                self.assertIn(f"\\fB{flag}\\fR", page, name)

    def test_pages_are_roff_without_warnings(self):
        skips.need(self, shutil.which("groff"), "groff")
        for name in self.texts:
            done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", self.page(name)], check=True, capture_output=True, text=True)
            self.assertEqual(done.stderr, "", name)
            self.assertIn("NAME", re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout), name)

    def test_completions_name_every_flag_and_command(self):
        for shell, place in SHELLS.items():
            for program in ("lime", "limed"):
                text = (self.prefix / place.format(program)).read_text()
                of = [name for name in self.texts if name.split("-")[0] == program]
                for name in of:
                    for flag in flags_of(self.texts[name]):
                        wanted = flag if shell != "fish" else f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                        self.assertRegex(text, rf"(?<![\w-]){re.escape(wanted)}(?![\w-])", f"{shell}, {name}")
            for command in self.commands:
                self.assertRegex((self.prefix / place.format("lime")).read_text(), rf"(?<![\w-]){command}(?![\w-])", shell)

    def test_completions_can_be_read_by_their_shells(self):
        for shell, place in SHELLS.items():
            if shutil.which(shell):
                for program in ("lime", "limed"):
                    subprocess.run([shell, "-n", self.prefix / place.format(program)], check=True)


if __name__ == "__main__":
    unittest.main()
