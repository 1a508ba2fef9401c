"""Which folder may include which: the table of docs/ARCHITECTURE.md, held against every #include and
every target of CMake.

A row of the table names one folder of the source tree and the folders that it may include. A folder
may always include itself. Generated headers belong to the folder of their .proto. Tests include what
they test and have no rows. Pure folders include no header of files, clocks, threads or tensors.
"""
import os
import re
from collections import namedtuple
from pathlib import Path

TABLE = "docs/ARCHITECTURE.md"
HEADER = re.compile(r"^\| *Folder *\| *May include *\|$")
NAME = re.compile(r"`([^`]+)`")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
SOURCES = (".h", ".cc", ".cu", ".inc", ".proto")
PROTO = "proto"  # the folder that .proto files are imported from

# Folders that decide and do nothing else, those below them too, and their files that are not so.
PURE = ("common", "planner", "daemon/logic", "coordinator/logic", "coordinator/api")
IMPURE = ("common/exposition/process_metrics", "common/http/http_server", "common/http/inbox", "common/http/tls_files", "common/input/command_line",
          "common/input/flag_file", "common/input/model_file", "common/input/toml_file", "common/steady_clock")
# Headers of files, clocks, threads and tensors, by which a pure file would stop being one.
OF_THE_WORLD = re.compile(r"(?:condition_variable|chrono|ctime|filesystem|fstream|future|iostream|mutex|semaphore|shared_mutex|thread|"
                          r"dirent\.h|fcntl\.h|pthread\.h|time\.h|unistd\.h|sys/.*|"
                          r"absl/synchronization/.*|absl/time/clock\.h|asio.*|grpcpp/.*|torch/.*|CLI/.*|toml\+\+/.*)$")

# line: in the table; may: the folders that it may include
Row = namedtuple("Row", "line may")
# folder: of its sources; line: in `file`; sources: paths; needs: names of the targets that it
# links; opened: a module, which has what the program has that opens it
Target = namedtuple("Target", "folder file line sources needs opened")


class TableError(Exception):
    pass


def rows_of(text):
    """-> {folder: Row} of the table in the text of the page."""
    lines = text.splitlines()
    begins = [at for at, line in enumerate(lines) if HEADER.match(line)]
    if len(begins) != 1:
        raise TableError(f"{TABLE}: {len(begins)} tables begin with | Folder | May include |")
    rows = {}
    for number, line in enumerate(lines[begins[0] + 2:], begins[0] + 3):
        if not line.startswith("|"):
            break
        cells = line.strip().strip("|").split("|")
        folder = NAME.findall(cells[0])
        if len(cells) != 2 or len(folder) != 1:
            raise TableError(f"{TABLE}:{number}: a row is one folder and the folders that it may include")
        if folder[0] in rows:
            raise TableError(f"{TABLE}:{number}: `{folder[0]}` has a row already")
        may = NAME.findall(cells[1])
        if not may and cells[1].strip() != "nothing":
            raise TableError(f"{TABLE}:{number}: write folders between backticks, or: nothing")
        rows[folder[0]] = Row(number, may)
    return rows


def circle_in(rows):
    """The folders of a circle in the table, the first of them also last; empty where there is none."""
    done = set()

    def walk(folder, way):
        if folder in way:
            return way[way.index(folder):] + [folder]
        if folder in done or folder not in rows:
            return []
        for next_folder in rows[folder].may:
            circle = walk(next_folder, way + [folder])
            if circle:
                return circle
        done.add(folder)
        return []

    for folder in rows:
        circle = walk(folder, [])
        if circle:
            return circle
    return []


class Tree:
    """The source files, includes and targets below `root`, a checkout."""

    def __init__(self, root):
        self.root = Path(root)
        self.tops = sorted(path.parent.name for path in self.root.glob("*/CMakeLists.txt") if path.parent.name != "tests")
        self.files = {}  # by folder
        for top in self.tops:
            for folder, _, names in os.walk(self.root / top):
                found = sorted(name for name in names if name.endswith(SOURCES))
                if found:
                    self.files[self._relative(folder)] = found
        self.targets = self._targets()

    def _relative(self, path):
        return str(Path(path).relative_to(self.root))

    def lines_of(self, path):
        return (self.root / path).read_text(errors="replace").splitlines()

    def included_by(self, path):
        """(line, path as written, its folder) of all files of the tree that the file includes."""
        for number, line in enumerate(self.lines_of(path), 1):
            match = INCLUDE.match(line)
            folder = self._folder_of(match.group(1), os.path.dirname(path)) if match else None
            if folder:
                yield number, match.group(1), folder

    def seen_by(self, path):
        """All that the file includes, itself or through the project's headers, as it is written there."""
        seen, ahead = set(), [path]
        while ahead:
            here = ahead.pop()
            for line in self.lines_of(here):
                match = INCLUDE.match(line)
                if match and match.group(1) not in seen:
                    seen.add(match.group(1))
                    if (self.root / match.group(1)).exists():
                        ahead.append(match.group(1))
        return sorted(seen)

    def _folder_of(self, included, here):
        """None for headers that are not the project's."""
        generated = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", included)
        if generated != included:
            return os.path.dirname(f"{PROTO}/{generated}") if (self.root / PROTO / generated).exists() else None
        if included.split("/")[0] in self.tops + ["tests"]:
            return os.path.dirname(included)
        beside = os.path.normpath(os.path.join(here, included))
        return os.path.dirname(beside) if (self.root / beside).exists() else None

    def _targets(self):
        """-> {name: Target} of all CMakeLists.txt below the top folders."""
        targets = {}
        for top in self.tops:
            for path in sorted((self.root / top).rglob("CMakeLists.txt")):
                self._read_targets(self._relative(path), targets)
        return targets

    def _read_targets(self, file, targets):
        here = os.path.dirname(file)
        text = re.sub(r"#[^\n]*", "", (self.root / file).read_text())
        for call in re.finditer(r"\b(\w+)\s*\(([^()]*)\)", text):
            command, words = call.group(1), call.group(2).split()
            if not words or "$" in words[0]:
                continue
            line = text.count("\n", 0, call.start()) + 1
            if command in ("lime_library", "lime_program", "lime_proto", "lime_service", "add_library", "add_executable"):
                needs = words[words.index("DEPS") + 1:] if "DEPS" in words else []
                paths = [os.path.normpath(f"{here}/{word}") for word in words[1:] if word.endswith(SOURCES) and "$" not in word]
                folder = os.path.dirname(paths[0]) if paths else here
                targets[words[0]] = Target(folder, file, line, paths, needs, "MODULE" in words)
            elif command == "target_link_libraries" and words[0] in targets:
                targets[words[0]].needs.extend(words[1:])

    def linked_with(self, name):
        """The names of the target and of all that it links, directly or not."""
        seen, ahead = set(), [name]
        while ahead:
            target = ahead.pop()
            if target in self.targets and target not in seen:
                seen.add(target)
                ahead += self.targets[target].needs
        return seen

    def used_by(self, name):
        """{path: where it is included} of what a target's sources include, and the headers of its folder that they include."""
        used, ahead = {}, list(self.targets[name].sources)
        while ahead:
            path = ahead.pop()
            if not (self.root / path).exists():
                continue
            for line, included, folder in self.included_by(path):
                if included not in used and folder == self.targets[name].folder:
                    ahead.append(included)
                used.setdefault(included, f"{path}:{line}")
        return used

    def built_by(self):
        """{path without its ending, as headers are included: name of the target} of all sources."""
        return {re.sub(rf"^{PROTO}/(?=.*\.proto$)", "", source).rsplit(".", 1)[0]: name
                for name, target in self.targets.items() for source in target.sources}


def allows(rows, folder, other):
    return folder == other or other in rows[folder].may


def row_of(rows, folder):
    return f"the row of `{folder}` ({TABLE}:{rows[folder].line})"


def faults_of_the_table(rows, tree):
    for folder in sorted(tree.files):
        if folder not in rows:
            yield f"{folder}/{tree.files[folder][0]}:1: the folder `{folder}` has no row in the table of {TABLE}"
    for folder, row in rows.items():
        if folder not in tree.files:
            yield f"{TABLE}:{row.line}: `{folder}` has a row and no source files"
        for other in row.may:
            if other not in rows and not (other.startswith("tests/") and (tree.root / other).is_dir()):
                yield f"{TABLE}:{row.line}: the row of `{folder}` names `{other}`, which has no row"
    circle = circle_in(rows)
    if circle:
        yield f"{TABLE}:{rows[circle[0]].line}: a circle: {' -> '.join(circle)}"


def faults_of_includes(rows, tree):
    for folder in sorted(tree.files.keys() & rows.keys()):
        for name in tree.files[folder]:
            for line, included, other in tree.included_by(f"{folder}/{name}"):
                if not allows(rows, folder, other):
                    yield f"{folder}/{name}:{line}: includes {included}; {row_of(rows, folder)} does not allow `{other}`"


def is_pure(path):
    return path.startswith(tuple(folder + "/" for folder in PURE)) and path.rsplit(".", 1)[0] not in IMPURE


def faults_of_purity(tree):
    for folder in sorted(tree.files):
        for path in (f"{folder}/{name}" for name in tree.files[folder]):
            if not is_pure(path):
                continue
            for number, line in enumerate(tree.lines_of(path), 1):
                match = INCLUDE.match(line)
                if match and (OF_THE_WORLD.match(match.group(1)) or match.group(1).rsplit(".", 1)[0] in IMPURE):
                    yield f"{path}:{number}: includes {match.group(1)}; {TABLE} calls the folder pure: no file, clock, thread or tensor"


def faults_of_targets(rows, tree):
    """A target links what its folder may include, and some code of every folder whose code it includes."""
    builders = tree.built_by()
    for name, target in tree.targets.items():
        if target.folder not in rows:
            continue
        where = f"{target.file}:{target.line}: {name}"
        for need in target.needs:
            other = tree.targets[need].folder if need in tree.targets else target.folder
            if not allows(rows, target.folder, other):
                yield f"{where} links {need}; {row_of(rows, target.folder)} does not allow `{other}`"
        linked = {tree.targets[other].folder for other in tree.linked_with(name)}
        for included, place in tree.used_by(name).items() if not target.opened else ():
            builder = builders.get(re.sub(r"(\.grpc)?(\.pb)?\.h$", "", included), name)
            if tree.targets[builder].folder not in linked:
                yield f"{where} links no target of `{tree.targets[builder].folder}`; {place} includes {included}"


def faults(root):
    """What the tree below `root` and its table do not agree in, one sentence each, in order."""
    rows = rows_of((Path(root) / TABLE).read_text())
    tree = Tree(root)
    return [*faults_of_the_table(rows, tree), *faults_of_includes(rows, tree), *faults_of_purity(tree), *faults_of_targets(rows, tree)]
