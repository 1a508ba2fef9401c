"""Names of classes, structs and enums that are defined twice in one namespace.

In an anonymous namespace a name may be another library's as well, but not that of another file of its
own library, nor one that the namespace around it has for all.
"""
import re
from collections import defaultdict, namedtuple

import includes

# Defined twice on purpose: (namespace, name).
TWINS = {("lime::cpu::HWY_NAMESPACE", "Block")}  # of a matrix product's kernels, one for many rows and one for one

OPENS = re.compile(r"^(?:inline )?namespace(?: ([\w:]+))? \{(.*)$")
CLOSES = re.compile(r"^\}  // namespace")
DEFINES = re.compile(r"^(?:template <.*> ?)?(?:class|struct|enum class|enum|union) (?:ABSL_\w+(?:\([^)]*\))? )?(\w+)(?: final)?"
                     r"(?: :[^:][^;]*)?(?: \{.*|)$")

# namespace: with :: between; own: in an anonymous namespace; library: the target that has the file,
# or its folder
Definition = namedtuple("Definition", "namespace name own library place")


def definitions_in(text, path, library):
    """All definitions that begin a line of a file, outside other classes. The layout is clang-format's."""
    open_now = []
    for number, line in enumerate(text.splitlines(), 1):
        opens, defines = OPENS.match(line), DEFINES.match(line)
        if opens and "}" not in opens.group(2):
            open_now.append(opens.group(1))
        elif CLOSES.match(line) and open_now:
            open_now.pop()
        elif defines:
            namespace = "::".join(name for name in open_now if name)
            yield Definition(namespace, defines.group(1), None in open_now, library, f"{path}:{number}")


def faults(root):
    """One sentence for each name that is defined twice, in order."""
    tree = includes.Tree(root)
    builders = tree.built_by()
    found = defaultdict(list)
    for folder in sorted(tree.files):
        for name in tree.files[folder]:
            path = f"{folder}/{name}"
            if not name.endswith((".h", ".cc")):
                continue
            library = builders.get(path.rsplit(".", 1)[0], folder)
            for definition in definitions_in((tree.root / path).read_text(errors="replace"), path, library):
                found[definition.namespace, definition.name].append(definition)
    for (namespace, name), all_of_it in found.items():
        if (namespace, name) in TWINS:
            continue
        for at, second in enumerate(all_of_it):
            for first in all_of_it[:at]:
                if first.own and second.own and first.library != second.library:
                    continue
                yield f"{second.place}: {namespace or 'no namespace'} has a {name} already, at {first.place}"
                break
