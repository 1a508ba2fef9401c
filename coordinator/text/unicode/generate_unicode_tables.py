#!/usr/bin/env python3
"""Writes the tables of unicode_data.cc from the files of Debian's package unicode-data.

Usage: generate_unicode_tables.py FOLDER OUTPUT, where FOLDER holds UnicodeData.txt, Scripts.txt and so on.

Every property becomes a sorted list of ranges. A property is known by each of its names, in lower case and without
spaces, hyphens and underscores, as Oniguruma compares them.
"""
import os
import re
import sys

LAST = 0x10FFFF


def plain(name):
    return re.sub("[ _-]", "", name).lower()


def rows(path):
    """The fields of each line, without comments."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = [field.strip() for field in line.split("#")[0].split(";")]
            if len(fields) > 1:
                yield fields


def code_range(text):
    first, _, last = text.partition("..")
    return int(first, 16), int(last or first, 16)


def merged(ranges):
    result = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def without(ranges):
    """All code points outside `ranges`."""
    result, next_code = [], 0
    for first, last in merged(ranges):
        if next_code < first:
            result.append((next_code, first - 1))
        next_code = last + 1
    return result + ([(next_code, LAST)] if next_code <= LAST else [])


def general_categories(folder):
    sets, first = {}, None
    for fields in rows(os.path.join(folder, "UnicodeData.txt")):
        code = int(fields[0], 16)
        if fields[1].endswith(", First>"):
            first = code
            continue
        sets.setdefault(fields[2], []).append((first if first is not None else code, code))
        first = None
    sets["Cn"] = without([r for ranges in sets.values() for r in ranges])
    for group in "CLMNPSZ":
        sets[group] = [r for name, ranges in sets.items() if len(name) == 2 and name[0] == group for r in ranges]
    sets["LC"] = sets["Lu"] + sets["Ll"] + sets["Lt"]
    return sets


def properties_of(path):
    sets = {}
    for fields in rows(path):
        sets.setdefault(fields[1], []).append(code_range(fields[0]))
    return sets


def named_sets(folder):
    """Long name -> ranges, and every other name -> long name."""
    categories = general_categories(folder)
    sets, aliases = {}, {}
    for fields in rows(os.path.join(folder, "PropertyValueAliases.txt")):
        if fields[0] == "gc" and fields[1] in categories:
            sets[fields[2]] = categories[fields[1]]
            aliases.update({name: fields[2] for name in [fields[1]] + fields[3:]})
    scripts = properties_of(os.path.join(folder, "Scripts.txt"))
    scripts["Unknown"] = without([r for ranges in scripts.values() for r in ranges])
    for fields in rows(os.path.join(folder, "PropertyValueAliases.txt")):
        if fields[0] == "sc" and fields[2] in scripts:
            sets[fields[2]] = scripts[fields[2]]
            aliases.update({name: fields[2] for name in [fields[1]] + fields[3:]})
    binary = {}
    for name in ("PropList.txt", "DerivedCoreProperties.txt", "emoji/emoji-data.txt"):
        binary.update(properties_of(os.path.join(folder, name)))
    sets.update(binary)
    for fields in rows(os.path.join(folder, "PropertyAliases.txt")):
        if fields[1] in binary:
            aliases.update({name: fields[1] for name in [fields[0]] + fields[2:] if plain(name) != plain(fields[1])})
    add_posix(sets, categories)
    add_ages(sets, os.path.join(folder, "DerivedAge.txt"))
    return sets, aliases


def add_posix(sets, categories):
    """Oniguruma's own names for what it makes of Unicode's properties."""
    space, cntrl = sets["White_Space"], categories["Cc"]
    graph = without(space + cntrl + categories["Cn"] + categories["Cs"])
    sets.update({
        "Any": [(0, LAST)],
        "Assigned": without(categories["Cn"]),
        "ASCII": [(0, 0x7F)],
        "Alnum": sets["Alphabetic"] + categories["Nd"],
        "Alpha": sets["Alphabetic"],
        "Blank": categories["Zs"] + [(9, 9)],
        "Cntrl": cntrl,
        "Digit": categories["Nd"],
        "Graph": graph,
        "Lower": sets["Lowercase"],
        "Print": graph + categories["Zs"],
        "Punct": categories["P"],
        "Space": space,
        "Upper": sets["Uppercase"],
        "XDigit": sets["ASCII_Hex_Digit"],
        "Word": sets["Alphabetic"] + categories["M"] + categories["Nd"] + categories["Pc"],
    })


def add_ages(sets, path):
    """What was assigned as of each version."""
    ages = properties_of(path)
    versions = sorted(ages, key=lambda version: [int(part) for part in version.split(".")])
    for index, version in enumerate(versions):
        sets["Age=" + version] = [r for earlier in versions[:index + 1] for r in ages[earlier]]


def main(folder, output):
    sets, aliases = named_sets(folder)
    names, ranges, spans = {}, [], []
    for index, (name, members) in enumerate(sorted(sets.items())):
        spans.append((len(ranges), len(merged(members))))
        ranges += merged(members)
        names.setdefault(plain(name), index)
    order = sorted(sets)
    for alias, name in sorted(aliases.items()):
        names.setdefault(plain(alias), order.index(name))
    with open(output, "w", encoding="ascii") as out:
        out.write("constexpr CodeRange kRanges[] = {\n")
        out.writelines(f"{{0x{first:X},0x{last:X}}},\n" for first, last in ranges)
        out.write("};\nconstexpr Span kSpans[] = {\n")
        out.writelines(f"{{{begin},{count}}},\n" for begin, count in spans)
        out.write("};\nconstexpr Name kNames[] = {\n")
        out.writelines(f'{{"{name}",{index}}},\n' for name, index in sorted(names.items()))
        out.write("};\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
