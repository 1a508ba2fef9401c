"""What every bench table needs: programs and their answers, aligned tables, verdicts."""
import json
import subprocess


def call(arguments):
    """Runs a program and returns what it printed; its own messages go through."""
    return subprocess.run([str(a) for a in arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def answer(arguments):
    return json.loads(call(list(arguments) + ["--json"]))


def heading(text):
    print(f"\n== {text}", flush=True)


def table(columns, rows):
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip(), flush=True)


def verdict(value, goal, at_least=True):
    return f"{'>=' if at_least else '<='} {goal:.4g} {'met' if (value >= goal) == at_least or value == goal else 'MISSED'}"


def mib(size):
    return f"{size / 2**20:.1f} MiB"
