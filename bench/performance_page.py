#!/usr/bin/python3
"""Writes the tables of docs/results/performance.md from docs/results/performance.csv, or those of another page.

Usage: bench/performance_page.py [PAGE [CSV]]

The data file has one line for each cell: table, row, column, value. Rows and columns of a table come in the
order of the file, and a table of the page in the place that has its name.
"""
import collections
import pathlib
import re
import sys

import data_files

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "docs/results"
PLACE = re.compile(r"(<!-- [\w-]+\.csv: ([\w-]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
NUMBER = re.compile(r"[\d.,]+( (GB/s|MiB|ms|s|tokens/s|us))?")


def tables_of(cells):
    """Each table of the data file as rows of {column: value}."""
    tables = collections.defaultdict(lambda: collections.defaultdict(dict))
    for cell in cells:
        row = tables[cell["table"]][cell["row"]]
        if cell["column"] in row:
            raise ValueError(f"{cell['table']}, row {cell['row']}: two values of \"{cell['column']}\"")
        row[cell["column"]] = cell["value"]
    return {name: list(rows.values()) for name, rows in tables.items()}


def markdown(rows):
    """A table with the columns of its first row. Columns of numbers are aligned to the right."""
    columns = list(rows[0])
    for row in rows:
        if list(row) != columns:
            raise ValueError(f"columns {list(row)} in a table of {columns}")
    numeric = [all(NUMBER.fullmatch(row[column]) for row in rows if row[column]) for column in columns]
    lines = [columns, ["--:" if right else "---" for right in numeric], *(list(row.values()) for row in rows)]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) + "\n" for line in lines)


def filled(page, tables):
    """The page with every table of the data file in its place. Each table needs one place, each place a table."""
    places = [found.group(2) for found in PLACE.finditer(page)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"the page has places for {sorted(places)}, the data file has {sorted(tables)}")
    return PLACE.sub(lambda found: f"{found.group(1)}\n{markdown(tables[found.group(2)])}\n{found.group(3)}", page)


def main(page=RESULTS / "performance.md", cells=RESULTS / "performance.csv"):
    page = pathlib.Path(page)
    page.write_text(filled(page.read_text(encoding="utf-8"), tables_of(data_files.read(cells))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
