"""The flags of a program's `--help`, and those that docs/reference/commands.md lists."""
import re
import subprocess

# "  -m,--model TEXT REQUIRED": the names, then what the value is like.
FLAG = re.compile(r"^  ((?:-\w,)?--[\w-]+(?:,--[\w-]+)*)(?: (.*))?$")
SENTENCE_AT = 30  # its column in a line of --help; where the names need more room it is in the next line
COMMAND = re.compile(r"^  ([a-z]+) {2,}")
ROW_NAME = re.compile(r"`(--?[\w-]+)`")
SECTION = re.compile(r"^## (lime [a-z]+|limed)$")
SHARES = re.compile(r"takes every flag of `(lime [a-z]+)`")


def help_of(program, command=""):
    words = [program, command, "--help"] if command else [program, "--help"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def commands_in(help_text):
    """The names of the commands that `lime --help` lists."""
    return [match.group(1) for match in map(COMMAND.match, help_text.splitlines()) if match]


def flags_in(help_text):
    """-> {names of one flag, in alphabetical order: its default, or ""}; --help is left out."""
    flags = {}
    for line in help_text.splitlines():
        match = FLAG.match(line[:SENTENCE_AT - 1] if line[SENTENCE_AT - 1:SENTENCE_AT] == " " else line)
        names = tuple(sorted(match.group(1).split(","))) if match else ()
        if names and "--help" not in names:
            flags[names] = (match.group(2) or "").partition("=")[2].strip()
    return flags


def flags_by_section(page):
    """-> {"lime run": flags as of flags_in} of the tables of the page."""
    sections, name = {}, None
    for number, line in enumerate(page.splitlines(), 1):
        section = SECTION.match(line)
        if section:
            name = section.group(1)
            sections[name] = {}
        elif line.startswith("## "):
            name = None
        elif name and SHARES.search(line):
            sections[name].update(sections[SHARES.search(line).group(1)])
        elif name and line.startswith("| `-"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) != 4 or not cells[3]:
                raise ValueError(f"line {number}: a row is a flag, its value, its default and a sentence")
            names = tuple(sorted(ROW_NAME.findall(cells[0])))
            if names in sections[name]:
                raise ValueError(f"line {number}: {' '.join(names)} is there twice")
            sections[name][names] = cells[2].strip("`")
    return sections


def faults(page, programs):
    """What the page and the programs do not agree in. `programs`: {"lime run": flags as of flags_in}"""
    listed = flags_by_section(page)
    for program in sorted(programs.keys() | listed.keys()):
        if program not in listed or program not in programs:
            yield f"{program}: is {'not on the page' if program not in listed else 'no command'}"
            continue
        has, says = programs[program], listed[program]
        yield from (f"{program}: {' '.join(names)} is not on the page" for names in sorted(has.keys() - says.keys()))
        yield from (f"{program}: {' '.join(names)} is on the page, and the program does not have it" for names in sorted(says.keys() - has.keys()))
        for names in sorted(has.keys() & says.keys()):
            if has[names] != says[names]:
                yield f"{program}: {' '.join(names)} has the default \"{has[names]}\", and the page says \"{says[names]}\""
