"""Writes all measurements as tables for programs, one row each. The data files have every figure;
the pages have summaries. Pure.
"""
import csv
import io

from virtual import report

STRATEGY_COLUMNS = (
    "group", "setting", "pattern", "requests", "mbit", "context", "kv_tokens", "strategy", "outcome",
    "full_size_ms", "predicted_ms", "measured_ms", "least_ms", "most_ms", "turns", "over_predicted",
    "over_bound", "lime_faster_by", "plan", "reason")
CONDITION_COLUMNS = (
    "group", "setting", "pattern", "requests", "mbit", "context", "device", "weights_memory_mb",
    "runtime_mb", "disk_asked_mb_s", "disk_least_mb_s", "disk_most_mb_s", "peak_mb", "limit_mb",
    "model_gb", "link_asked_mbit", "link_least_mbit", "link_most_mbit", "round_trip_ms",
    "real_compute_share", "oom_kills", "same_tokens_and_logits")


def rounded(value, digits=3):
    return "" if value is None else f"{value:.{digits}f}"


def question_of(result):
    """The first columns of both tables."""
    return {"group": result["group"], "setting": result["setting"],
            "pattern": "sporadic" if result["requests"] == 1 else "bursty",
            "requests": result["requests"], "context": result["context"],
            "mbit": "50-250" if result["group"] == "varying" else result["mbit"]}


def strategy_rows(results):
    """One dictionary for each strategy of each experiment."""
    rows = []
    for result in results:
        faster = report.ratios(result)
        for row in result["strategies"]:
            found = {key: row[key] for key in ("strategy", "outcome", "turns", "plan") if key in row}
            found |= {key: rounded(row.get(key)) for key in
                      ("full_size_ms", "predicted_ms", "measured_ms", "least_ms", "most_ms")}
            found |= {key: rounded(row.get(key), 6) for key in ("over_predicted", "over_bound")}
            found |= {"lime_faster_by": rounded(faster.get(row["strategy"]), 6),
                      "kv_tokens": result.get("kv_tokens") or "",
                      "reason": " ".join(row.get("reason", "").split())}
            rows.append(question_of(result) | found)
    return rows


def condition_rows(results):
    """One dictionary for each device of each experiment: the requested limits beside the measured
    ones.
    """
    rows = []
    for result in results:
        link = result["link"]
        of_all = {"model_gb": rounded(result["model"]["bytes"] / 1e9),
                  "link_asked_mbit": rounded(link["asked_mbit"], 2),
                  "round_trip_ms": rounded(link["round_trip_ms"]),
                  "real_compute_share": rounded(result["real_compute_share"]),
                  "oom_kills": result["oom_kills"],
                  "same_tokens_and_logits": "yes" if result["same_tokens_and_logits"] else "no"}
        of_all |= ends("link", "mbit", link["measured_mbit"])
        for device in result["devices"]:
            measured = device["disk_measured"]
            found = {"device": device["name"],
                     "weights_memory_mb": rounded(device["weights_memory"] / 1e6, 1),
                     "runtime_mb": rounded(device["runtime"] / 1e6, 1),
                     "disk_asked_mb_s": rounded(device["disk_asked"] / 1e6, 1)}
            found |= ends("disk", "mb_s", measured and [value / 1e6 for value in measured])
            if most := report.closest(result, device["name"]):
                found |= {"peak_mb": rounded(most["peak"] / 1e6, 1),
                          "limit_mb": rounded(most["limit"] / 1e6, 1)}
            rows.append(question_of(result) | of_all | found)
    return rows


def ends(what, unit, values):
    least, most = values or (None, None)
    return {f"{what}_least_{unit}": rounded(least, 1), f"{what}_most_{unit}": rounded(most, 1)}


def as_csv(columns, rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(results, folder, stem):
    """Writes STEM.csv of the strategies and STEM-conditions.csv of the devices."""
    (folder / f"{stem}.csv").write_text(as_csv(STRATEGY_COLUMNS, strategy_rows(results)))
    (folder / f"{stem}-conditions.csv").write_text(as_csv(CONDITION_COLUMNS, condition_rows(results)))
