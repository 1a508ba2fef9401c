"""Paths between backticks and links in the pages: files, folders and headings of the tree, which are there.

A path is meant where it begins with one of the tree's folders, or ends like a source file. It is
written from the root, from the page's folder, or from a folder that the text is about. Words that
stand for others are written in capitals (`tests/kernels/NAME_test.cc`), and are no path; nor are
patterns, or what a reader makes elsewhere (`keys/ca.key`).
"""
import os
import re
from pathlib import Path

WORDS = re.compile(r"`([\w./-]+)`")
OF_SOURCES = (".h", ".cc", ".cu", ".py", ".proto", ".cmake", ".md")
NOT_THE_TREE = {"build", ".cache", ".git"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.S | re.M)
HEADING = re.compile(r"^#+ (.+)$", re.M)
STANDS_FOR = re.compile(r"[A-Z]{2,}(?![A-Z]*\.(?:md|txt)\b)")


def faults(root):
    """One sentence for each path that is not there, in order."""
    root, files, folders = Path(root), set(), set()
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in NOT_THE_TREE)
        here = os.path.relpath(folder, root)
        folders.add(here)
        files |= {os.path.normpath(f"{here}/{name}") for name in names}
    ends = {path[at + 1:] for path in files | folders for at, letter in enumerate(path) if letter == "/"} | files | folders
    for page in sorted(path for path in files if path.endswith(".md")):
        for number, line in enumerate((root / page).read_text().splitlines(), 1):
            for word in WORDS.findall(line):
                path = os.path.normpath(word)
                meant = path.split("/")[0] in folders and "/" in word or path.endswith(OF_SOURCES)
                if not meant or word.startswith((".", "/")) or STANDS_FOR.search(word):
                    continue
                beside = os.path.normpath(f"{os.path.dirname(page)}/{path}")
                code = any(name + ending in ends for name in (path, beside) for ending in ("", ".h", ".cc"))  # `daemon/logic/kv_book`
                if not code:
                    yield f"{page}:{number}: `{word}` is not there"
        yield from faults_of_links(root, page)


def without_code(text):
    """The text with lines where they were."""
    return CODE.sub(lambda code: "\n" * code.group().count("\n"), text)


def anchors_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def faults_of_links(root, page):
    text = without_code((root / page).read_text())
    for link in LINK.finditer(text):
        path, _, anchor = link.group(1).partition("#")
        target = (root / page).parent / path if path else root / page
        if ":" in path or target.exists() and (not anchor or anchor in anchors_of(target.read_text())):
            continue
        yield f"{page}:{text.count(chr(10), 0, link.start()) + 1}: {link.group(1)} leads nowhere"
