#!/usr/bin/env python3
"""Writes the table of page_files.cc from the files of the page.

Usage: generate_page_files.py OUTPUT FILE...

The tag of a file is a hash of its bytes. index.html is answered at "/".
"""
import hashlib
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n"}
PER_LINE = 96  # bytes in one literal


def literal(data):
    """C++ string literals. Octal escapes have three digits, so that a digit may follow."""
    lines = [data[at:at + PER_LINE] for at in range(0, len(data), PER_LINE)] or [b""]
    return "\n".join('    "' + "".join(ESCAPES.get(c) or (chr(c) if 32 <= c < 127 and c != ord("?") else f"\\{c:03o}") for c in line) + '"' for line in lines)


def table(paths):
    """One entry for each file, in the order of the paths in requests."""
    entries = []
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        name = os.path.basename(path)
        tag = hashlib.sha256(data).hexdigest()[:32]
        entries.append(("/" if name == "index.html" else f"/{name}", TYPES[os.path.splitext(name)[1]], tag, data))
    lines = ["constexpr PageFile kFiles[] = {"]
    for name, kind, tag, data in sorted(entries):
        lines.append(f'  {{"{name}", "{kind}", "\\"{tag}\\"", std::string_view(\n{literal(data)}, {len(data)})}},')
    return "\n".join(lines + ["};", ""])


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="ascii") as output:
        output.write(table(sys.argv[2:]))
