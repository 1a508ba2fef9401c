"""The commands and files of a Markdown page, in order, for a test that types them.

A page that is typed has fenced blocks only, each with its language: `sh` blocks are commands, `toml`,
`python` and `js` blocks that begin with a comment of a file name (`# NAME`, `// NAME`) are files that
the reader writes, `text` blocks are what programs print. Anything else is an error, so that no
command and no program of a page escapes its test.
"""
import re
import shlex
from dataclasses import dataclass

FENCE = re.compile(r"^ *```(.*)$")
INDENTED = re.compile(r"^(    |\t)(?! *[-*0-9|])\S")  # a code block by indentation
NAMED = re.compile(r"^(?:#|//) ([\w.-]+\.(?:toml|py|mjs))$")
IN_A_LIST = re.compile(r"^ *([-*]|\d+\.) ")


@dataclass(frozen=True)
class Command:
    line: int  # in the page, from 1
    text: str  # as it stands there; may have several lines, joined by backslashes or within quotes


@dataclass(frozen=True)
class File:
    line: int
    name: str
    text: str


class PageError(Exception):
    pass


def goes_on(text):
    """Whether a command ends with a backslash or within quotes."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def commands_of(lines, first):
    """One Command for each line of an `sh` block that is more than a comment; `first`: number of its first line."""
    found, begun = [], None
    for number, line in enumerate(lines, first):
        if begun is not None:
            begun = Command(begun.line, begun.text + "\n" + line)
        elif line.strip() and not line.lstrip().startswith("#"):
            begun = Command(number, line)
        if begun is not None and not goes_on(begun.text):
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
            if language not in ("sh", "toml", "python", "js", "json", "text"):
                raise PageError(f"line {number}: a block of {language or 'no language'}; a typed page has sh, toml, python, js, json and text")
        elif block is not None and fence:
            if language == "sh":
                steps += commands_of(block, first)
            elif language in ("toml", "python", "js"):
                name = NAMED.match(block[0]) if block else None
                if name:
                    steps.append(File(first, name.group(1), "\n".join(block) + "\n"))
                elif language != "toml":
                    raise PageError(f"line {first}: a program without the name of its file in the first line")
            block = None
        elif block is not None:
            block.append(line)
        elif INDENTED.match(line) and not previous.strip():
            raise PageError(f"line {number}: a block by indentation; put it between ``` fences with its language")
        previous = line
    if block is not None:
        raise PageError(f"line {first - 1}: the block has no end")
    return steps
