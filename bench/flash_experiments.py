#!/usr/bin/python3
"""Runs the experiments of "LLM in a flash" from the beginning, and writes the page of their answers beside the paper's figures.

    bench/flash_experiments.py BIN_DIR WORK_DIR [EXPERIMENT...] [--disk MB/s] [--page PAGE] [--trained MODEL TEXT] [--quick] [--keep-models]

Experiments:
  half       Table 2 with half of the weights in memory: OPT 6.7B's sizes with 8 of 32 layers, in bf16
  certified  the same model with 60 % in memory, with copies of deciders that prove zeros
  together   which neurons of that model are active together (Figures 4a and 5)
  fp32       Table 2 with bundles of 32 KiB: 4 of OPT's layers, in fp32, with 60 % in memory
  falcon     Table 2 with bundles of 35.5 KiB and a window of 4 tokens: Falcon 7B's sizes with 4 of 32 layers, in fp32, with 60 % in memory
  trained    a trained ReLU model: its predictor (section 3.1) and its friends. Without --trained it is models/lime-fables-sparse, with a text that make_corpus
             makes; with --trained also multiple choice (Table 1), for which the last quarter of TEXT is kept apart

With --disk, a control group limits the reads of the ladders to that rate, so that a machine has the disk of a board; needs root. These answers are kept beside
those without a limit, and the page has both. While a limited disk is idle, the kernel saves up reads for up to a tenth of a second, so runs of the engine may read
faster than the limit for a moment; replayed rungs read all the time.

The models of all experiments but the last one are planted (testbed/make_model/README.md), so figures of them are of reads, memory and time. Tokens are those of a
text of random characters; copies of deciders and the order of neurons are learned from another such text. Every answer is kept in WORK_DIR, and only missing ones are
measured; a model stays until its last experiment, then it is removed. The largest needs 12 GB of disk. Takes about an hour on two cores, most of it for
calibrating and for the runs of the engine.
"""
import argparse
import dataclasses
import importlib.util
import json
import pathlib
import random
import shutil
import subprocess
import sys
import time

import cgroups
import flash_page
from machine import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT_CHARACTERS = 120_000
LEARNED, MEASURED = 1, 2  # seeds of random texts
FABLES = ("--grammar", ROOT / "testbed/train/fables.grammar", "--root", "scholar", "--seed", 8, "--count", 6000)  # another seed than those of training
QUICK_WIDTH = 4  # widths are divided by so much
HELD_OUT = 4     # one part in so many of a trained model's text


@dataclasses.dataclass(frozen=True)
class Geometry:
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocab: int
    dtype: str

    def divided(self, factor):
        """Narrower, with as many heads."""
        return dataclasses.replace(self, layers=min(2, self.layers), hidden=self.hidden // factor, intermediate=self.intermediate // factor, vocab=self.vocab // factor)

    def flags(self):
        return ["--family", "opt", "--planted", "--layers", self.layers, "--hidden", self.hidden, "--heads", self.heads, "--intermediate", self.intermediate,
                "--vocab", self.vocab, "--positions", 2048, "--tie", "--dtype", self.dtype]


OPT = Geometry(8, 4096, 32, 16384, 50272, "BF16")
GEOMETRIES = {"opt": OPT, "opt-fp32": dataclasses.replace(OPT, layers=4, dtype="F32"), "falcon-fp32": Geometry(4, 4544, 71, 18176, 65024, "F32")}


@dataclasses.dataclass(frozen=True)
class Ladder:
    name: str  # of its section
    geometry: str
    share: float = 0.5  # of the weights, in memory
    flags: tuple = ()


LADDERS = {
    "half": Ladder("OPT geometry, bf16", "opt"),
    "certified": Ladder("OPT geometry, bf16, 60 % of the weights in memory, copies of deciders", "opt", 0.6),
    "fp32": Ladder("OPT geometry, fp32, 60 % of the weights in memory", "opt-fp32", 0.6, flags=("--no-engine",)),
    "falcon": Ladder("Falcon 7B geometry, fp32, 60 % of the weights in memory, window of 4 tokens", "falcon-fp32", 0.6, flags=("--no-engine", "--window", 4)),
}
TOGETHER, TRAINED = "together", "trained"
EXPERIMENTS = ("half", "certified", TOGETHER, "fp32", "falcon", TRAINED)
WITH_COPIES = ("opt",)  # geometries whose copies of deciders are learned, too
PREDICTOR_RANK_SHARE = 4  # of the hidden features of a trained model, one in so many


class FlashExperiments:
    def __init__(self, flags):
        self.flags, self.binaries, self.folder = flags, flags.binaries, flags.folder
        self.lime, self.answers = flags.binaries / "lime", flags.folder / ("answers-quick" if flags.quick else "answers")
        self.answers.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()

    def folders(self, geometry):
        """Of its model and of its store."""
        name = f"{geometry}-quick" if self.flags.quick else geometry
        return self.folder / name, self.folder / f"{name}.store"

    def say(self, text):
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", file=sys.stderr, flush=True)

    def run(self, command, read_bps=None):
        """What a program prints. Its messages go on to ours."""
        command = [str(word) for word in command]
        self.say(" ".join([pathlib.Path(command[0]).name, *command[1:]]))
        with cgroups.Group(read_bps=read_bps) as group:
            process = group.start(command, stdout=subprocess.PIPE, text=True)
            out, _ = process.communicate()
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, command)
        return out

    def keep(self, answer, out):
        """Last of all that belongs to an experiment: what has an answer is not measured again."""
        part = self.path_of(answer).with_suffix(".part")
        part.write_text(out, encoding="utf-8")
        part.replace(self.path_of(answer))

    def path_of(self, answer):
        return self.answers / f"{answer}.json"

    def answer_of(self, experiment, disk):
        """The name of the answer of a ladder with this limit of the disk, in MB/s; 0: none."""
        if experiment == TRAINED:
            return f"{TRAINED}-{self.trained_model().name}"
        return f"{experiment}-{disk:g}" if disk and experiment in LADDERS else experiment

    def missing(self, experiment):
        return not self.path_of(self.answer_of(experiment, self.flags.disk)).exists()

    # ---- Planted models

    def text(self, seed):
        """Random characters of one to four bytes, so that a byte-level tokenizer gives nearly all of its first 256 ids."""
        path = self.folder / f"random-{seed}.txt"
        if not path.exists():
            chosen = random.Random(seed)
            ranges = ((0x20, 0x7e), (0xa1, 0x7ff), (0x800, 0xd7ff), (0x10000, 0x10ffff))
            path.write_text("".join(chr(chosen.randint(*chosen.choice(ranges))) for _ in range(TEXT_CHARACTERS)), encoding="utf-8")
        return path

    def store(self, name):
        """The bundle store of a geometry; its parts are made again only if they are missing."""
        geometry = GEOMETRIES[name].divided(QUICK_WIDTH) if self.flags.quick else GEOMETRIES[name]
        model, store = self.folders(name)
        if not (model / "config.json").exists():
            self.run([self.binaries / "make_model", "--out", model, *geometry.flags()])
        prepare = [self.lime, "prepare", model, "--out", store, "--bundles", "--json"]
        self.run(prepare)  # what is there stays
        if name in WITH_COPIES and (self.missing(TOGETHER) or not (store / "calibration.frames").exists()):
            out = self.run([self.lime, "calibrate", store, "--text-file", self.text(LEARNED), "--masks", 16, "--coactivation", "--json"])
            self.run(prepare)  # adds the copies of deciders
            self.keep(TOGETHER, out)
        return model, store

    def ladder(self, experiment):
        ladder = LADDERS[experiment]
        model, store = self.store(ladder.geometry)
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        quick = ["--tokens", 16, "--learn", 32, "--quick"] if self.flags.quick else []
        read_bps = (cgroups.disk_of(self.folder), int(self.flags.disk * 1e6)) if self.flags.disk else None
        out = self.run([self.lime, "bench", "flash", "--model", store, "--memory", int(weights * ladder.share), "--text-file", self.text(MEASURED), *ladder.flags, *quick, "--json"],
                       read_bps)
        self.keep(self.answer_of(experiment, self.flags.disk), out)

    # ---- A trained model

    def trained_model(self):
        return self.flags.trained[0] if self.flags.trained else ROOT / "models/lime-fables-sparse"

    def trained(self):
        model = self.trained_model()
        store, learned, held_out = (self.folder / f"{model.name}.{what}" for what in ("store", "learned.txt", "held-out.txt"))
        whole = self.flags.trained[1].read_text(encoding="utf-8") if self.flags.trained else self.run([self.binaries / "make_corpus", *FABLES]).replace("----\n", "")
        cut = len(whole) - len(whole) // HELD_OUT
        learned.write_text(whole[:cut], encoding="utf-8")
        held_out.write_text(whole[cut:], encoding="utf-8")
        rank = json.loads((model / "config.json").read_text())["hidden_size"] // PREDICTOR_RANK_SHARE
        self.run([self.lime, "prepare", model, "--out", store, "--bundles", "--json"])
        out = self.run([self.lime, "calibrate", store, "--text-file", learned, "--predictor", rank, "--coactivation", "--json"])
        if self.flags.trained:
            choices = pathlib.Path(__file__).with_name("choices.py")
            self.run([sys.executable, choices, self.binaries, store, held_out, "--out", self.path_of(f"choices-{model.name}")])
        self.keep(self.answer_of(TRAINED, 0), out)

    # ---- All

    def measure(self):
        left = [experiment for experiment in self.flags.experiments if self.missing(experiment)]
        for experiment in left:
            if experiment == TRAINED:
                self.trained()
            elif experiment == TOGETHER:
                self.store("opt")
            else:
                self.ladder(experiment)
            self.remove_models(left[left.index(experiment) + 1:])

    def remove_models(self, left):
        """Those that no experiment needs that is left."""
        needed = {"opt" if experiment == TOGETHER else LADDERS[experiment].geometry for experiment in left if experiment != TRAINED}
        for name in () if self.flags.keep_models else set(GEOMETRIES) - needed:
            for folder in self.folders(name):
                shutil.rmtree(folder, ignore_errors=True)

    def read(self, answer):
        return json.loads(self.path_of(answer).read_text(encoding="utf-8"))

    def ladders_at_hand(self):
        """{name of a section: answer}, those with a limit of the disk behind the one without."""
        found = {}
        for experiment, ladder in LADDERS.items():
            for path in sorted(self.answers.glob(f"{experiment}*.json")):
                limit = path.stem.removeprefix(experiment).removeprefix("-")
                found[ladder.name + (f", disk limited to {limit} MB/s" if limit else "")] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def write_page(self):
        calibrations, predictors, tasks = {}, {}, {}
        if not self.missing(TOGETHER):
            calibrations["planted OPT"] = self.read(TOGETHER)
        for path in sorted(self.answers.glob(f"{TRAINED}-*.json")):
            name = path.stem.removeprefix(f"{TRAINED}-")
            calibrations[name] = predictors[name] = self.read(path.stem)
            tasks |= {name: self.read(f"choices-{name}")} if self.path_of(f"choices-{name}").exists() else {}
        flash_page.write(self.flags.page, self.ladders_at_hand(), predictors, tasks, calibrations, machine=machine_text(), svg=importlib.util.find_spec("matplotlib") is not None)


def machine_text():
    of = machine()
    return f"{of['cores']} cores of {of['cpu']}, Linux {of['kernel']}"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="folder of lime, make_model, make_corpus and train_predictor")
    parser.add_argument("folder", type=pathlib.Path, help="for models, stores and answers, on the disk to measure")
    parser.add_argument("experiments", nargs="*", help=", ".join(EXPERIMENTS) + "; without one, all")
    parser.add_argument("--disk", type=float, default=0, help="limit of the ladders' reads, in MB/s; 0: none")
    parser.add_argument("--page", type=pathlib.Path, help="write this page, and its figures if matplotlib is there")
    parser.add_argument("--trained", nargs=2, type=pathlib.Path, metavar=("MODEL", "TEXT"), help="another trained ReLU model, and text of the kind that it knows")
    parser.add_argument("--quick", action="store_true", help="small models and few tokens: checks the program")
    parser.add_argument("--keep-models", action="store_true")
    flags = parser.parse_intermixed_args()  # experiments may follow flags
    if unknown := [name for name in flags.experiments if name not in EXPERIMENTS]:
        parser.error(f"{unknown[0]} is no experiment; there are {', '.join(EXPERIMENTS)}")
    if not 0 <= flags.disk < 1e6:
        parser.error("--disk is 0 to 1e6 MB/s")
    flags.experiments = flags.experiments or list(EXPERIMENTS)
    return flags


def main():
    flags = parse()
    flags.folder.mkdir(parents=True, exist_ok=True)
    experiments = FlashExperiments(flags)
    try:
        experiments.measure()
    except KeyboardInterrupt:
        print("bench/flash_experiments.py: interrupted; answers are kept, and the same command goes on from there", file=sys.stderr)
        sys.exit(130)
    except cgroups.Unavailable as why:
        sys.exit(f"bench/flash_experiments.py: {why}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"bench/flash_experiments.py: {failed.cmd[0]} ended with {failed.returncode}, as it says above")
    if flags.page:
        experiments.write_page()


if __name__ == "__main__":
    main()
