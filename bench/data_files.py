"""The data files of docs/results as CSV: reads them, and makes the rows of streaming.csv."""
import csv

COLUMNS = ("run", "disk_limit_mb_s", "weights", "resident_percent", "ms_per_token", "over_limit",
           "over_what_computing_leaves", "prediction_error_percent", "disk_before_mb_s", "disk_after_mb_s",
           "budget_mib", "peak_rss_mib", "group_peak_mib", "others_percent")


def streaming_row(row, run="1"):
    """One line of the file for a row of `Streaming.disk`."""
    mib = lambda size: "" if size is None else f"{size / 2**20:.0f}"
    return {"run": run, "disk_limit_mb_s": row["limit_mb"] or "", "weights": row["model"],
            "resident_percent": row["share"], "ms_per_token": f"{row['ms']:.0f}",
            "over_limit": f"{row['ratio']:.3f}",
            "over_what_computing_leaves": f"{row['shared_ratio']:.2f}" if "shared_ratio" in row else "",
            "prediction_error_percent": f"{100 * row['error']:+.1f}",
            "disk_before_mb_s": f"{row['rate_before'] / 1e6:.1f}",
            "disk_after_mb_s": f"{row['rate_after'] / 1e6:.1f}", "budget_mib": mib(row["budget_bytes"]),
            "peak_rss_mib": mib(row["peak_rss_bytes"]), "group_peak_mib": mib(row["group_peak_bytes"]),
            "others_percent": f"{100 * row['others']:.0f}"}


def write(rows, path):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path):
    """The lines of a file as dictionaries. A line with more or fewer values than columns is an error."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"{path}: row {number} has another number of values than columns")
    return rows
