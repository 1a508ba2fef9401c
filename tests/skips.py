"""Skips of tests for want of something that is not here: noted by each test, counted after all of them.

  skips.py forget FILE   deletes the notes of the last run
  skips.py count FILE    prints one label for each thing wanted, which ctest shows above its last line

ctest names FILE to its tests in LIME_SKIPPED_TESTS. tests/skips.h is the same for C++.
"""
import collections
import os
import sys
import unittest
from pathlib import Path

SHARED = "../shared"
SSH = "an SSH server (Debian: openssh-server, openssh-client)"  # as tests/integration/programs/up_test.cc calls it
NAMESPACES = "root that may make network namespaces and control groups"
REMEDY = " (put that folder beside the project)"


def need(test, there, what):
    """Skips `test`, a TestCase or the class in its setUpClass, unless `there`. `what` names what is wanted: a path from ../shared on, or a noun."""
    if there:
        return
    if "LIME_SKIPPED_TESTS" in os.environ:
        name = test.__qualname__ if isinstance(test, type) else test.id()
        with open(os.environ["LIME_SKIPPED_TESTS"], "a", encoding="utf-8") as file:
            file.write(f"{name}\t{what}\n")
    raise unittest.SkipTest(f"for want of {what}")


def sentences(notes):
    """How many tests were skipped for want of ../shared, if none, too; then of everything else that was wanted."""
    wants = collections.Counter()
    for line in notes.splitlines():
        what = line.split("\t", 1)[1]
        wants[SHARED if what == SHARED or what.startswith(f"{SHARED}/") else what] += 1
    from_shared = wants.pop(SHARED, 0)
    yield said(from_shared, SHARED) + (REMEDY if from_shared else "")
    for what, count in sorted(wants.items()):
        yield said(count, what)


def said(count, what):
    return f"{count or 'no'} test{'' if count <= 1 else 's'} skipped for want of {what}"


def main(step, file):
    file = Path(file)
    if step == "forget":
        file.unlink(missing_ok=True)
        return
    notes = file.read_text(encoding="utf-8") if file.exists() else ""
    print(notes, end="")
    for sentence in sentences(notes):
        print(f"<CTestLabel>{sentence}</CTestLabel>")


if __name__ == "__main__":
    main(*sys.argv[1:])
