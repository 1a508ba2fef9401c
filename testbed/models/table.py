#!/usr/bin/python3
"""Plans the checkpoints of checkpoints.json on one board each, and writes the tables of docs/MODELS.md.

Usage: testbed/models/table.py                              writes the tables again from docs/results/models.csv
       testbed/models/table.py plan LIME [JOBS [FILE...]]   first plans all checkpoints, or those of these files,
                                                            with the program LIME

A plan needs neither weights nor a board. Its times are predictions from the rates in board-*.json. The data file has
one line for each checkpoint and board. `ms_per_token` is "none" if no plan fits, and empty if none was made.
"""
import concurrent.futures
import csv
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "testbed/models"
PAGE, CELLS = ROOT / "docs/MODELS.md", ROOT / "docs/results/models.csv"
PLACE = re.compile(r"(<!-- models\.csv: ([\w-]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
BOARDS = (8, 16, 32, 64)  # nominal memory, in GB
TOKENS = 2048  # of KV
COLUMNS = ("file", "board_gb", "weight_bytes", "kv_bytes", "state_bytes", "used_bytes", "read_bytes_per_token",
           "experts_kept", "experts", "expected_hit_share", "ms_per_token")
NOT_A_TIME = {"none": "does not fit", "": "not planned"}  # in the column ms_per_token
NO_EXPERTS = "No checkpoint with experts was planned yet.\n"


def checkpoints():
    return json.loads((FOLDER / "checkpoints.json").read_text(encoding="utf-8"))


def text_config(file):
    """The fields of the language model in a config.json, with those that may stand outside of it."""
    whole = json.loads((ROOT / file).read_text(encoding="utf-8"))
    return {**whole, **whole.get("text_config", {})}


# ---- Planning

def weight_bytes(key, tied):
    """Bytes of all weights, from the key of a model: those of the embedding, of attention, of MLPs, of the head, and
    of linear attention and of experts, if there are any. A tied head has the embedding's."""
    sizes = [int(size) for size in re.search(r" bytes=([\d+]+)", key)[1].split("+")]
    beside_linear = re.search(r" linear=[^+ ]+\+(\d+) experts=", key)
    return sum(sizes) - (sizes[0] if tied else 0) + (int(beside_linear[1]) if beside_linear else 0)


def row_of(report, tied):
    """The cells of a feasible `lime plan --json` for one board."""
    device, memory = report["devices"][0], report["devices"][0]["memory"]
    experts = device.get("experts")
    read = device["streamed_bytes_per_step"] + (experts["expected_bytes_per_step"] if experts else 0)
    row = {"weight_bytes": weight_bytes(report["plan"]["model_key"], tied), "kv_bytes": memory["kv_bytes"], "state_bytes": memory.get("state_bytes", 0),
           "used_bytes": sum(memory.values()) - memory["free_bytes"], "read_bytes_per_token": round(read),
           "ms_per_token": f"{report['ms_per_token']:.4g}"}
    if experts:
        row |= {"experts_kept": experts["kept"], "experts": experts["of"],
                "expected_hit_share": f"{experts['expected_hit_share']:.3f}"}
    return row


def plan(lime, file, board):
    """The line of the data file for one checkpoint on one board. Any other failure than "no plan fits" is an error."""
    command = [lime, "plan", "--json", "--tokens", str(TOKENS), "--model-spec", str(ROOT / file), "--device-profiles",
               str(FOLDER / f"board-{board}.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = {"file": file, "board_gb": board}
    if done.returncode == 0:
        return line | row_of(json.loads(done.stdout), text_config(file).get("tie_word_embeddings", False))
    if "no plan fits" in done.stdout + done.stderr:
        return line | {"ms_per_token": "none"}
    raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def all_cases():
    return [(entry["file"], board) for entry in checkpoints() for board in BOARDS]


def plan_all(lime, jobs, files):
    """Plans these files, or all, and keeps the other lines of the data file."""
    cases = [case for case in all_cases() if not files or case[0] in files]
    if not cases:
        raise ValueError(f"checkpoints.json has none of {files}")
    cells = read_cells() if files else {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        cells |= dict(zip(cases, pool.map(lambda case: plan(lime, *case), cases)))
    write_cells(cells)


def write_cells(cells):
    with open(CELLS, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells[case] for case in all_cases())


# ---- The page

def read_cells():
    """The lines of the data file by (file, board)."""
    with open(CELLS, encoding="utf-8", newline="") as file:
        return {(line["file"], int(line["board_gb"])): line for line in csv.DictReader(file)}


def gib(size):
    """A size in GiB with three digits, such as 1.23 GiB."""
    return f"{digits(float(size) / 2**30)} GiB"


def digits(value):
    """Three digits, with commas between thousands."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:.3g}"


def markdown(head, rows):
    """A table whose columns, but for the first, are aligned to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "".join("|" + "".join(f" {cell} |" for cell in line) + "\n" for line in lines)


def link(entry):
    """The checkpoint's name, which leads from docs to its file."""
    return f"[{entry['name']}](../{entry['file']})"


def lines_of(cells, entry):
    """The lines of a checkpoint, by board."""
    return [cells[entry["file"], board] for board in BOARDS]


def checkpoint_table(cells):
    rows = []
    for entry in checkpoints():
        line = next(line for line in lines_of(cells, entry) if line["weight_bytes"])
        rows.append([link(entry), f"`{text_config(entry['file'])['model_type']}`", entry["weights"],
                     gib(line["weight_bytes"]), gib(int(line["kv_bytes"]) + int(line["state_bytes"]))])
    return markdown(["checkpoint", "`model_type`", "weights", "size", f"KV of {TOKENS:,} tokens, and states"], rows)


def board_table(cells, cell_of, entries):
    """One row for each checkpoint, one column for each board."""
    rows = [[link(entry), *map(cell_of, lines_of(cells, entry))] for entry in entries]
    return markdown(["checkpoint", *(f"{board} GB" for board in BOARDS)], rows)


def time_cell(line):
    return NOT_A_TIME.get(line["ms_per_token"]) or digits(float(line["ms_per_token"]))


def memory_cell(line):
    if line["ms_per_token"] in NOT_A_TIME:
        return NOT_A_TIME[line["ms_per_token"]]
    read = int(line["read_bytes_per_token"])
    return f"{gib(line['used_bytes'])}, reads {gib(read) if read else 'nothing'}"


def expert_cell(line):
    if line["ms_per_token"] in NOT_A_TIME:
        return NOT_A_TIME[line["ms_per_token"]]
    if not line["experts"]:
        return "all stream" if int(line["read_bytes_per_token"]) else "all"
    return f"{line['experts_kept']} of {line['experts']}, {float(line['expected_hit_share']):.0%} hits".replace("%", " %")


def tables(cells):
    """Each table of the page by its name."""
    def those_with(column):
        return [entry for entry in checkpoints() if any(line[column] for line in lines_of(cells, entry))]

    planned, with_experts = those_with("ms_per_token"), those_with("experts")
    return {"checkpoints": checkpoint_table(cells), "times": board_table(cells, time_cell, planned),
            "memory": board_table(cells, memory_cell, planned),
            "experts": board_table(cells, expert_cell, with_experts) if with_experts else NO_EXPERTS}


def filled(page, made):
    """The page with every table in its place. Each table needs one place, each place a table."""
    places = [found[2] for found in PLACE.finditer(page)]
    if sorted(places) != sorted(made):
        raise ValueError(f"the page has places for {sorted(places)}, the tables are {sorted(made)}")
    return PLACE.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}", page)


def main(command=None, lime=None, jobs="1", *files):
    if command == "plan" and lime is not None:
        plan_all(lime, int(jobs), files)
    elif command is not None:
        sys.exit(__doc__)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(read_cells())), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
