"""The flags of a program's `--help` and their sentences, and those that docs/reference/commands.md lists."""
import re
import subprocess

# "  -m,--model TEXT REQUIRED": the names, then what the value is like.
FLAG = re.compile(r"^  ((?:-\w,)?--[\w-]+(?:,--[\w-]+)*)(?: (.*))?$")
SENTENCE_AT = 30  # its column in a line of --help; where the names need more room it is in the next line
COMMAND = re.compile(r"^  ([a-z]+) {2,}")
ROW_NAME = re.compile(r"`(--?[\w-]+)`")
SECTION = re.compile(r"^## (lime [a-z]+|limed)$")
SHARES = re.compile(r"takes every flag of `(lime [a-z]+)`(?: except ([^.]*)\.)?")
AS_IN = re.compile(r"As in `(lime [a-z]+)`\.")
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def help_of(program, command=""):
    words = [program, command, "--help"] if command else [program, "--help"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def commands_in(help_text):
    """The names of the commands that `lime --help` lists."""
    return [match.group(1) for match in map(COMMAND.match, help_text.splitlines()) if match]


def split_line(line):
    """A line of --help as names and value, and the sentence."""
    if line[SENTENCE_AT - 1:SENTENCE_AT] == " ":
        return line[:SENTENCE_AT].rstrip(), line[SENTENCE_AT:].strip()
    return line, ""


def sentences_in(help_text):
    """-> {names of one flag, in alphabetical order: (default or "", sentence)}; --help is left out."""
    flags, names = {}, ()
    for line in help_text.splitlines():
        start, sentence = split_line(line)
        match = FLAG.match(start)
        if match:
            names = tuple(sorted(match.group(1).split(",")))
            if "--help" not in names:
                flags[names] = ((match.group(2) or "").partition("=")[2].strip(), sentence)
        elif start.strip() or not sentence:
            names = ()
        elif names in flags:  # the sentence goes on
            flags[names] = (flags[names][0], f"{flags[names][1]} {sentence}".strip())
    return flags


def flags_by_section(page):
    """-> {"lime run": flags as of sentences_in} of the tables of the page."""
    sections, name = {}, None
    for number, line in enumerate(page.splitlines(), 1):
        section = SECTION.match(line)
        if section:
            name = section.group(1)
            sections[name] = {}
        elif line.startswith("## "):
            name = None
        elif name and SHARES.search(line):
            of, without = SHARES.search(line).groups()
            sections[name].update({names: row for names, row in sections[of].items() if not set(names) & set(ROW_NAME.findall(without or ""))})
        elif name and line.startswith("| `-"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) != 4 or not cells[3]:
                raise ValueError(f"line {number}: a row is a flag, its value, its default and a sentence")
            names = tuple(sorted(ROW_NAME.findall(cells[0])))
            if names in sections[name]:
                raise ValueError(f"line {number}: {' '.join(names)} is there twice")
            sections[name][names] = (cells[2].strip("`"), cells[3])
    return sections


def begins_with_help(sections, names, cell, sentence):
    """Whether the cell of a row, or of the row that it refers to, begins with the sentence of --help."""
    elsewhere = AS_IN.match(cell)
    if elsewhere:
        cell = sections.get(elsewhere.group(1), {}).get(names, ("", ""))[1]
    words = LINK.sub(r"\1", cell).replace("`", "")
    return words.startswith(sentence.replace("`", "").rstrip(".") + ".")


def faults(page, programs):
    """What the page and the programs do not agree in. `programs`: {"lime run": flags as of sentences_in}"""
    listed = flags_by_section(page)
    for program in sorted(programs.keys() | listed.keys()):
        if program not in listed or program not in programs:
            yield f"{program}: is {'not on the page' if program not in listed else 'no command'}"
            continue
        has, says = programs[program], listed[program]
        yield from (f"{program}: {' '.join(names)} is not on the page" for names in sorted(has.keys() - says.keys()))
        yield from (f"{program}: {' '.join(names)} is on the page, and the program does not have it" for names in sorted(says.keys() - has.keys()))
        for names in sorted(has.keys() & says.keys()):
            (default, sentence), (said, cell) = has[names], says[names]
            if default != said:
                yield f"{program}: {' '.join(names)} has the default \"{default}\", and the page says \"{said}\""
            if not begins_with_help(listed, names, cell, sentence):
                yield f"{program}: {' '.join(names)} is \"{sentence}\" in --help, and the page says \"{cell}\""
