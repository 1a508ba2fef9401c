"""The commands and files of a Markdown page, in order, for a test that types them.

A page that is typed has fenced blocks only, each with its language: `sh` blocks are commands, `toml`
blocks that begin with `# NAME` are files that the reader writes, `text` blocks are what programs
print. Anything else is an error, so that no command of a page escapes its test.
"""
import re
from dataclasses import dataclass

FENCE = re.compile(r"^ *```(.*)$")
INDENTED = re.compile(r"^(    |\t)(?! *[-*0-9|])\S")  # a code block by indentation
IN_A_LIST = re.compile(r"^ *([-*]|\d+\.) ")


@dataclass(frozen=True)
class Command:
    line: int  # in the page, from 1
    text: str  # as it stands there; may have several lines, joined by backslashes


@dataclass(frozen=True)
class File:
    line: int
    name: str
    text: str


class PageError(Exception):
    pass


def commands_of(lines, first):
    """One Command for each line of an `sh` block that is more than a comment; `first`: number of its first line."""
    found, begun = [], None
    for number, line in enumerate(lines, first):
        if begun is not None:
            begun = Command(begun.line, begun.text + "\n" + line)
        elif line.strip() and not line.lstrip().startswith("#"):
            begun = Command(number, line)
        if begun is not None and not line.endswith("\\"):
            found.append(begun)
            begun = None
    if begun is not None:
        raise PageError(f"line {begun.line}: the command goes on after the end of its block")
    return found


def steps_of(text):
    """Commands and Files of a page, in order."""
    steps, block, language, first = [], None, "", 0
    previous = ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if block is None and fence:
            block, language, first = [], fence.group(1).strip(), number + 1
            if language not in ("sh", "toml", "json", "text"):
                raise PageError(f"line {number}: a block of {language or 'no language'}; a typed page has sh, toml, json and text")
        elif block is not None and fence:
            if language == "sh":
                steps += commands_of(block, first)
            elif language == "toml" and block and block[0].startswith("# ") and block[0].endswith(".toml"):
                steps.append(File(first, block[0][2:].strip(), "\n".join(block) + "\n"))
            block = None
        elif block is not None:
            block.append(line)
        elif INDENTED.match(line) and not previous.strip():
            raise PageError(f"line {number}: a block by indentation; put it between ``` fences with its language")
        previous = line
    if block is not None:
        raise PageError(f"line {first - 1}: the block has no end")
    return steps
