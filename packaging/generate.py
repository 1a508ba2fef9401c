#!/usr/bin/env python3
"""Writes the files that an installation has beside the programs: man pages and completions from
their --help texts, and the units with the paths of the programs.

    packaging/generate.py --lime BIN/lime --limed BIN/limed --prefix /usr/local --out FOLDER

FOLDER gets share/ and lib/ as they lie below the prefix. `cmake --install` calls this.
"""
import argparse
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import completions  # noqa: E402
import help_text  # noqa: E402
import man_pages  # noqa: E402

HERE = Path(__file__).resolve().parent
INSTALLED_HERE = "/usr/local/bin/"  # as in the units
UNITS = ("limed.service", "lime-serve.service")


def said(program, *words):
    return subprocess.run([str(program), *words], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def help_texts(program):
    """{command: Help}, with "" for the program itself."""
    own = help_text.parse(said(program, "--help"))
    names = [option.names[0] for option in own.commands()]
    return {"": own} | {name: help_text.parse(said(program, name, "--help")) for name in names}


def version_of(program):
    """The release of "lime 0.1.0, protocol 2"."""
    return said(program, "--version").split()[1].rstrip(",")


def files(lime, limed, prefix):
    """{path below the prefix: text}"""
    of_lime, of_limed, version = help_texts(lime), help_texts(limed), version_of(lime)
    made = {"share/man/man1/lime.1": man_pages.of_lime(of_lime[""], version),
            "share/man/man8/limed.8": man_pages.of_limed(of_limed[""], version)}
    for name, text in of_lime.items():
        if name:
            made[f"share/man/man1/lime-{name}.1"] = man_pages.of_command(name, text, version)
    for program, texts in (("lime", of_lime), ("limed", of_limed)):
        made[f"share/bash-completion/completions/{program}"] = completions.bash(program, texts)
        made[f"share/zsh/site-functions/_{program}"] = completions.zsh(program, texts)
        made[f"share/fish/vendor_completions.d/{program}.fish"] = completions.fish(program, texts)
    for name in UNITS:
        made[f"lib/systemd/system/{name}"] = (HERE / name).read_text().replace(INSTALLED_HERE, f"{prefix}/bin/")
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("lime", "limed", "prefix", "out"):
        parser.add_argument(f"--{name}", required=True)
    flags = parser.parse_args()
    try:
        made = files(flags.lime, flags.limed, flags.prefix.rstrip("/"))
    except (OSError, subprocess.SubprocessError, help_text.FormatError) as error:
        sys.exit(f"generate.py: no man pages and completions: {error}")
    for path, text in made.items():
        place = Path(flags.out) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


if __name__ == "__main__":
    main()
