"""Cases by number: the change, the program that is called, and the files that it may write. A seed
and a number always give the same case.
"""
import json
import random
import shutil

from . import folder, values

MODEL, CLUSTER, DAEMON, PLAN, DEVICES = "case/model", "case/cluster.toml", "case/limed.toml", "case/plan.json", "case/devices.json"
CLUSTER_TEXT = """[cluster]
name = "shelf"
model = "model"

[[device]]
name = "anna"
address = "localhost:1"
memory = "400MiB"
weights = "/nowhere"
threads = 2
backend = "cpu"
profile = "profile.json"

[[device]]
name = "bert"
address = "localhost:2"
memory = "300MiB"
profile = "profile.json"

[[link]]
from = "anna"
to = "bert"
bandwidth = "100Mbit/s"
latency = "0.3ms"
"""
DAEMON_TEXT = """listen = "localhost:0"
name = "anna"
memory = "400MiB"
threads = 1
log = "error"
"""
RATES = {"memory_bytes": 400_000_000, "read_bytes_per_second": 1e9, "flops": 1e11, "disk": {"bytes_per_second": 1e8, "latency_ms": 0.3}}
DEVICES_TREE = {"link": {"bandwidth": "100Mbit/s", "latency_ms": 0.3}, "devices": [{"name": "a", **RATES}, {"name": "b", **RATES}]}
PROFILE_TREE = {"cpu": "one", "threads": 1, "read_bytes_per_second": 1e9, "flops": 1e11,
                "disk": [{"read_bytes": 1048576, "depth": 8, "bytes_per_second": 1e8, "latency_ms": 0.3}]}
PROBLEM = {"kind": "optimize", "time_limit_ms": 20,
           "instance": {"net": {"tx_ms": 1, "lat_ms": 1}, "blocks": [{"kind": "attn", "layer": 0, "mb": 10}, {"kind": "mlp", "layer": 0, "mb": 20}],
                        "devices": [{"mem_mb": 25, "disk_mb_per_ms": 1, "comp_ms": [1, 1]}]}}

ON_MODEL = [["run", "--model", MODEL, "-p", "ab", "-n", "2"],
            ["run", "--model", MODEL, "-p", "ab", "-n", "2", "--json", "--resident", "0%"],
            ["run", "--model", MODEL, "-p", "ab", "-n", "2", "--trace", "out/trace.json"],
            ["score", "--model", MODEL, "--ids", "1,2,3"],
            ["tokenize", "--model", MODEL],
            ["prepare", MODEL, "--out", "out/store"],
            ["quantize", "--model", MODEL, "--out", "out/copy", "--group-size", "32"],
            ["plan", "--model", MODEL, "--device-profiles", DEVICES, "--tokens", "32", "--time-limit", "100", "--out", "out/plan.json"]]
ON_CLUSTER = [["plan", "--cluster", CLUSTER, "--tokens", "32", "--time-limit", "100"],
              ["devices", "--cluster", CLUSTER],
              ["down", "--cluster", CLUSTER],
              ["profile", "--cluster", CLUSTER, "--seconds", "0.05"],
              ["push", "--cluster", CLUSTER, "--model", MODEL],
              ["run", "--cluster", CLUSTER, "--model", MODEL, "-p", "a", "-n", "1"],
              ["keys", "--cluster", CLUSTER, "--out", "out/keys"]]
ON_PLAN = [["simulate", "--plan", PLAN, "--trace", "out/trace.json"],
           ["run", "--cluster", CLUSTER, "--model", MODEL, "--plan", PLAN, "-p", "a", "-n", "1"]]
ON_FIGURES = [["plan", "--model", MODEL, "--device-profiles", DEVICES, "--tokens", "32", "--time-limit", "100"],
              ["plan", "--cluster", CLUSTER, "--tokens", "32", "--time-limit", "100"],
              ["run", "--model", MODEL, "--profile", "case/profile.json", "-p", "a", "-n", "1"]]
WRITES = ("--out", "-o", "--trace", "--store")  # flags that name files to write
TARGETS = ["out/new", "out/no/folder", "others/notes.txt", "others/model", "others/model/model.safetensors", "others/link", CLUSTER, "/dev/null",
           "/dev/full", "/dev/stdout", "", ".", "others", "case"]
VALUES = ["", "-1", "0", "1", "65536", "99999999999999999999", "1e99", "nan", "inf", "none", "auto", "1GiB", "-1GiB", "0x10", "case", "nowhere", MODEL,
          "others/notes.txt", "\u65e5\u672c", "a" * 5000, "--", "-", "1,2,,3", "%", "50%", "\udcff"]
FLAGS = ["--help", "--version", "--json", "--verify", "--overwrite", "--memory", "--threads", "--seed", "--cluster", "--model", "--max-tokens", "--context",
         "--resident", "--loader", "--unknown", "-x", "--stop", "--kv", "--numerics", "--chunk", "--tokens", "--sequences", "--strategy", "--piece", "--ids"]


class Case:
    """The case of one number: words, standard input, and the folder that `prepare` makes."""

    def __init__(self, seed, number):
        self.number = number
        self.random = random.Random(f"{seed}:{number}")
        self.kind = self.random.choices(["model", "cluster", "daemon", "plan", "figures", "problem", "command"], [35, 17, 8, 8, 7, 5, 20])[0]
        self.program, self.words, self.stdin = "lime", [], b""

    def prepare(self, base, box):
        """Copies the valid folder `base` to `box` and changes it. -> self"""
        r = self.random
        for name in ("case", "others"):
            shutil.copytree(base / name, box / name, symlinks=True)
        for name in ("out", "home", "tmp"):
            (box / name).mkdir()
        getattr(self, "make_" + self.kind)(r, box)
        return self

    def make_model(self, r, box):
        folder.mutate(r, box / MODEL)
        self.words = list(r.choice(ON_MODEL))
        if self.words[0] == "tokenize":
            self.stdin = r.choice([b"", b"abc d\n", "\u65e5 \U0001f999".encode(), r.randbytes(50)])

    def change_lines(self, r, file):
        text = file.read_text(encoding="utf-8")
        for _ in range(r.choice([1, 1, 2, 4])):
            text = values.mutate_lines(r, text)
        data = text.encode("utf-8", "surrogatepass")
        file.write_bytes(values.mutate_bytes(r, data) if r.random() < 0.2 else data)

    def change_tree(self, r, file):
        tree = json.loads(file.read_text(encoding="utf-8"))
        for _ in range(r.choice([1, 1, 2, 4])):
            values.mutate_tree(r, tree)
        data = values.json_text(r, tree).encode("utf-8", "surrogatepass")
        file.write_bytes(values.mutate_bytes(r, data) if r.random() < 0.2 else data)

    def make_cluster(self, r, box):
        self.change_lines(r, box / CLUSTER)
        self.words = list(r.choice(ON_CLUSTER))

    def make_daemon(self, r, box):
        self.change_lines(r, box / DAEMON)
        self.program, self.words = "limed", ["--config", DAEMON]

    def make_plan(self, r, box):
        self.change_tree(r, box / PLAN)
        self.words = list(r.choice(ON_PLAN))

    def make_figures(self, r, box):
        self.change_tree(r, box / r.choice([DEVICES, "case/profile.json"]))
        self.words = list(r.choice(ON_FIGURES))

    def make_problem(self, r, box):
        del box
        tree = json.loads(json.dumps(PROBLEM))
        for _ in range(r.choice([1, 1, 2, 4])):
            values.mutate_tree(r, tree)
        self.stdin = values.json_text(r, tree).encode("utf-8", "surrogatepass")
        self.words = ["solve"]

    def make_command(self, r, box):
        del box
        self.words = list(r.choice(ON_MODEL + ON_CLUSTER + ON_PLAN + ON_FIGURES))
        for _ in range(r.choice([1, 1, 2, 3])):
            self.change_words(r)

    def change_words(self, r):
        words = self.words
        at = r.randrange(len(words))
        act = r.randrange(6)
        if act == 0 and len(words) > 1:
            del words[at]
        elif act == 1:
            words.insert(at, words[at])
        elif act == 2 and at > 0:
            words[at] = r.choice(TARGETS if words[at - 1] in WRITES else VALUES)
        elif act == 3:
            words += [r.choice(WRITES), r.choice(TARGETS)]
        elif act == 4:
            words.append(r.choice(FLAGS))
            if r.random() < 0.6:
                words.append(r.choice(VALUES))
        else:
            words[at] = str(values.near(r, words[at])).replace("\0", "")

    def written(self):
        """The paths that the words name for output."""
        named = []
        for at, word in enumerate(self.words):
            if word in WRITES and at + 1 < len(self.words):
                named.append(self.words[at + 1])
            named += [word.partition("=")[2] for flag in WRITES if word.startswith(flag + "=")]
        return named


def write_base(base, lime_plan):
    """Writes valid inputs, and files of the user that no case may change. `lime_plan(folder)` makes
    the plan.
    """
    folder.write(base / MODEL)
    folder.write(base / "others/model", seed=2)
    (base / "others/notes.txt").write_text("dear reader\n")
    (base / "others/link").symlink_to("notes.txt")
    (base / CLUSTER).write_text(CLUSTER_TEXT)
    (base / DAEMON).write_text(DAEMON_TEXT)
    (base / DEVICES).write_text(json.dumps(DEVICES_TREE))
    (base / "case/profile.json").write_text(json.dumps(PROFILE_TREE))
    lime_plan(base)
