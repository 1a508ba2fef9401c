"""The new reader's walk of docs/ARCHITECTURE.md: its steps, and what of them is not there."""
import re
from dataclasses import dataclass, field

WALK = "## A new reader's walk"
STEP = re.compile(r"^\| *(\d+) *\| *`([^`]+)` *\| *`([^`]+)` *\|")
MOST_STEPS = 4


@dataclass
class Way:
    line: int  # of its heading in the page, from 1
    title: str
    steps: list = field(default_factory=list)  # (line, number, file, name)
    code: list = field(default_factory=list)  # lines of the last file, as the page shows them


def ways_of(page):
    """The ways of the walk, in order."""
    ways, walking, in_code = [], False, False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            in_code = not in_code
        elif in_code:
            if ways and walking:
                ways[-1].code.append(line)
        elif line.startswith("## "):
            walking = line == WALK
        elif walking and line.startswith("### "):
            ways.append(Way(number, line[4:]))
        elif walking and ways and STEP.match(line):
            step, file, name = STEP.match(line).groups()
            ways[-1].steps.append((number, int(step), file, name))
    return ways


def plain(text):
    """Without differences of white space."""
    return " ".join(text.split())


def faults(page, text_of):
    """What of the walk is not so, one sentence each. `text_of(file)`: its text, None where it is not there."""
    ways = ways_of(page)
    if not ways:
        yield f'there is no walk; it begins with "{WALK}"'
    for way in ways:
        if [step[1] for step in way.steps] != list(range(1, len(way.steps) + 1)) or not 1 <= len(way.steps) <= MOST_STEPS:
            yield f"line {way.line}: \"{way.title}\" has the steps {[step[1] for step in way.steps]}, and a way has 1 to {MOST_STEPS}"
            continue
        for line, _, file, name in way.steps:
            text = text_of(file)
            if text is None:
                yield f"line {line}: there is no {file}"
            elif not re.search(rf"\b{re.escape(name)}\b", text):
                yield f"line {line}: {file} has no {name}"
        last = text_of(way.steps[-1][2])
        if not way.code or (last is not None and plain("\n".join(way.code)) not in plain(last)):
            yield f"line {way.line}: \"{way.title}\" does not end with a line of {way.steps[-1][2]}"
