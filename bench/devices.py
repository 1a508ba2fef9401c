"""Tables of bench/run about what daemons and a short run cost beside their work: start, idle, hop, pipeline."""
import json
import pathlib
import signal
import statistics
import subprocess
import time

from report import call, heading, mib, table, verdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "lime-fables"
PROMPT = "Once upon a time"
START_GOAL_MS = 60  # from exec to the first token of the shipped model
IDLE_GOAL_MIB = 60  # of a daemon with a plan, beside the memory of the plan
HOP_GOAL_US = 60  # a message of 4 KiB from one daemon to another on loopback, median
PIPELINE_GOAL = 0.02  # more for a token over two daemons than in one process, everything resident, median of the rounds' ratios


def start(bench):
    """Half of the runs come first, so that files and clocks are as they stay."""
    heading("`lime run` of the shipped model: from the start of the process to the first token")
    times_ms = [first_token_ms(bench.lime) for _ in range(10 if bench.quick else 40)]
    times_ms = sorted(times_ms[len(times_ms) // 2:])
    median = statistics.median(times_ms)
    bench.report["start"] = {"ms": times_ms}
    table(["least", "median", "most", "goal"], [[f"{times_ms[0]:.1f} ms", f"{median:.1f} ms", f"{times_ms[-1]:.1f} ms", verdict(median, START_GOAL_MS, at_least=False)]])


def first_token_ms(lime):
    """The prompt is printed at once, and a token as soon as it is there."""
    words = [str(lime), "run", "--model", str(MODEL), "--prompt", PROMPT, "--max-tokens", "2", "--ignore-eos"]
    begin = time.monotonic()
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
    printed = b""
    while len(printed) <= len(PROMPT):
        more = run.stdout.read(4096)
        if not more:
            break
        printed += more
    elapsed_ms = 1000 * (time.monotonic() - begin)
    run.stdout.read()
    run.stdout.close()
    if run.wait() != 0 or not printed.startswith(PROMPT.encode()):
        raise RuntimeError(f"{' '.join(words)}: {printed!r}")
    return elapsed_ms


def idle(bench):
    """While the coordinator is stopped nobody orders anything, and the plan stays for some seconds."""
    heading("A daemon that holds a plan and does nothing: its memory beside that of the plan")
    folder = bench.out / "idle"
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    with open(log, "wb") as out:
        limed = subprocess.Popen([str(bench.binaries / "limed"), "--name", "a", "--listen", "127.0.0.1:0", "--threads", "1"], stdout=out, stderr=out)
    try:
        port = awaited(log, "listens on port ").split()[0].rstrip(".,")
        cluster, plan = folder / "cluster.toml", folder / "plan.json"
        cluster.write_text(f'[cluster]\nname = "idle"\nmodel = "{MODEL}"\n[[device]]\nname = "a"\naddress = "127.0.0.1:{port}"\nmemory = "1GiB"\nweights = "{MODEL}"\n')
        over = ["--cluster", str(cluster)]
        call([bench.lime, "profile", *over, "--seconds", "0.2"])
        call([bench.lime, "plan", *over, "--tokens", "512", "--out", plan])
        memory = json.loads(plan.read_text())["devices"][0]["memory"]
        rows = []
        for what in ("fresh", "after a run before"):
            run = subprocess.Popen([str(bench.lime), "run", *over, "--plan", str(plan), "--context", "512", "--prompt", PROMPT, "--max-tokens", "480", "--ignore-eos"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
            run.stdout.read(len(PROMPT) + 200)
            run.send_signal(signal.SIGSTOP)
            time.sleep(0.3)  # what was ordered ends
            rows.append((what, resident_bytes(limed.pid)))
            run.send_signal(signal.SIGCONT)
            run.communicate()
    finally:
        limed.terminate()
        limed.wait()
    planned = sum(value for name, value in memory.items() if isinstance(value, int) and name not in ("runtime", "margin"))
    bench.report["idle"] = {"plan_bytes": planned, "resident_bytes": dict(rows)}
    table(["daemon", "resident", "of it the plan's", "beside it", "goal"],
          [[what, mib(resident), mib(planned), mib(resident - planned), verdict((resident - planned) / 2**20, IDLE_GOAL_MIB, at_least=False)] for what, resident in rows])


def resident_bytes(pid):
    return next(int(line.split()[1]) * 1024 for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))


def awaited(log, words):
    """What follows the words in the file, once they are there."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        _, found, rest = log.read_text().partition(words)
        if found and rest:
            return rest
        time.sleep(0.01)
    raise RuntimeError(log.read_text())


def hop(bench):
    heading("A hop from one daemon to another, on loopback")
    rounds = [json.loads(call([bench.binaries / "hop_bench", "--messages", 2000 if bench.quick else 10000])) for _ in range(3)]
    found = sorted(rounds, key=lambda one: one["hop_us_median"])[1]
    bench.report["hop"] = rounds
    table(["bytes", "p10", "median", "p90", "goal"],
          [[found["bytes"], f"{found['hop_us_p10']:.1f} us", f"{found['hop_us_median']:.1f} us", f"{found['hop_us_p90']:.1f} us", verdict(found["hop_us_median"], HOP_GOAL_US, at_least=False)]])


def pipeline(bench):
    """As root, for two network namespaces (testbed/overhead)."""
    heading("Two daemons beside one process, everything resident, one thread")
    words = [ROOT / "testbed" / "overhead", "--bin", bench.binaries, "--work", bench.out, "--rounds", 3 if bench.quick else 9, "--tokens", 32 if bench.quick else 96]
    print(call(words), end="", flush=True)
    found = json.loads((bench.out / "overhead" / "result.json").read_text())["overhead"]
    bench.report["pipeline"] = found
    alone, together = (statistics.median(found[name]) for name in ("alone_ms", "together_ms"))
    table(["one process", "two daemons", "more", "logits", "goal"],
          [[f"{alone:.2f} ms", f"{together:.2f} ms", f"{found['overhead']:.1%}", "the same" if found["same_logits"] else "DIFFER",
            verdict(found["overhead"], PIPELINE_GOAL, at_least=False)]])
