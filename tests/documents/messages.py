"""Messages that docs/troubleshooting.md quotes, held against the string literals of the sources.

A message is a code span in a column headed `Message`, `Message begins with` or `Reason`. `...` stands for names and numbers: the words
between must be those of the literals, in order. Backquotes of a message are left out on the page, since they end a code span.
"""
import re

LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')
HEADINGS = {"Message", "Message begins with", "Reason"}
CODE = re.compile(r"`([^`]+)`")


def literals_in(source):
    """What the string literals of a C++ source say; neighbours are one. Places of printf are `...`, too."""
    for found in LITERALS.finditer(source):
        text = "".join(part[1:-1] for part in re.findall(r'"(?:[^"\\\n]|\\.)*"', found.group()))
        text = text.replace('\\"', '"').replace("\\n", " ").replace("\\'", "'").replace("`", "")
        yield re.sub(r"%[-0-9.]*[a-z]", "\0", text).replace("%%", "%")


def messages_in(page):
    """(line, message) of every message of the tables."""
    column = None
    for number, line in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            column = None
        elif column is None:
            column = next((at for at, cell in enumerate(cells) if cell in HEADINGS), -1)
        elif column >= 0:
            yield from ((number, message) for message in CODE.findall(cells[column]))


def is_said(words, said):
    """Whether `words` are in one literal, or in several that follow one another with at least two of the words in each."""
    if not words or " ".join(words) in said:
        return True
    return any(" ".join(words[:many]) in said and is_said(words[many:], said) for many in range(len(words) - 2, 1, -1))


def faults(page, sources):
    """A sentence for each quoted message with words that are in no literal of `sources`."""
    said = "\1".join(literal for source in sources for literal in literals_in(source))
    for number, message in messages_in(page):
        for words in re.split(r"\.\.\.|\S*\d\S*", message):  # between names and numbers
            if not is_said(words.split(), said):
                yield f"docs/troubleshooting.md:{number}: no program says \"{words.strip()}\" (of \"{message}\")"
