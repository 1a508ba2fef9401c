"""The --help texts of the programs, as data: one parser for man pages and completions. Pure.

The text is CLI11's: a description, "Usage: ...", groups whose title ends with a colon, entries whose
description begins in column 30 (on the next line if names and type are longer), then a footer.
"""
import re
from dataclasses import dataclass, field

COLUMN = 30  # where descriptions begin
TYPE = re.compile(r"^(?P<type>[A-Z]+(?: [A-Z]+)?(?::[A-Z]+)?)?(?P<more>.*)$")


@dataclass
class Option:
    """A flag, a positional or a subcommand."""

    names: list
    type: str = ""  # "TEXT", "INT"; empty: a flag without a value
    default: str = ""
    required: bool = False
    text: str = ""

    def long(self):
        return [name for name in self.names if name.startswith("--")]

    def short(self):
        return [name for name in self.names if re.fullmatch("-[^-]", name)]


@dataclass
class Group:
    title: str
    entries: list = field(default_factory=list)


@dataclass
class Help:
    description: str
    usage: str
    groups: list
    footer: list  # lines

    def options(self):
        return [entry for group in self.groups for entry in group.entries if entry.names[0].startswith("-")]

    def positionals(self):
        return [entry for group in self.groups if group.title == "Positionals" for entry in group.entries]

    def commands(self):
        return [entry for group in self.groups if group.title == "Subcommands" for entry in group.entries]


class FormatError(Exception):
    pass


def parse(text):
    lines = text.splitlines()
    begins = [at for at, line in enumerate(lines) if line.startswith("Usage: ")]
    if len(begins) != 1:
        raise FormatError(f"a help text has one line that begins with \"Usage: \", this one has {len(begins)}")
    groups, at = [], begins[0] + 1
    while at < len(lines):
        line = lines[at]
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if re.fullmatch(r"\S.*:", line) and re.match(r"  \S", following) and not line.startswith("Example"):
            groups.append(Group(line[:-1]))
        elif re.match(r"  \S", line) and groups:
            continued = following.startswith(" " * COLUMN)
            left, right = (line, following) if continued else (line[:COLUMN], line[COLUMN:])
            groups[-1].entries.append(entry_of(left.strip(), right.strip()))
            at += continued
        elif line.strip():
            break  # the footer
        at += 1
    description = " ".join(" ".join(lines[:begins[0]]).split())
    return Help(description, lines[begins[0]][len("Usage: "):], groups, [line.rstrip() for line in lines[at:]])


def entry_of(left, text):
    names, _, rest = left.partition(" ")
    required = bool(re.search(r"\bREQUIRED\b", rest))
    rest = re.sub(r"\b(REQUIRED|Needs: .*|Excludes: .*)", "", rest).strip()
    kind, _, default = rest.partition("=")
    return Option(names.split(","), TYPE.match(kind.strip()).group("type") or "", default.strip(), required, text)
