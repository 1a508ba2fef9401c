"""Random changes of values, bytes and JSON trees. Pure: all random numbers come from the given
random.Random.
"""
import json

NUMBERS = [0, -1, 1, 2, 3, 7, 31, 255, 256, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 1e-300, 1e308, -0.0, 0.5]
STRINGS = ["", " ", "\0", "\u2028", "\ud83e\udd99", "a" * 5000, "../x", "/", ".", "%s%n", "null", "-1", "NaN", "\\", "\"", "<|x|>", "\ufeff", "e\u0301"]


def value(r):
    """Any JSON value."""
    kind = r.randrange(8)
    if kind == 0:
        return None
    if kind == 1:
        return r.random() < 0.5
    if kind in (2, 3):
        return r.choice(NUMBERS)
    if kind in (4, 5):
        return r.choice(STRINGS)
    if kind == 6:
        return [value(r) for _ in range(r.randrange(4))]
    return {r.choice(STRINGS[:6] + ["type", "id", "name"]): value(r) for _ in range(r.randrange(3))}


def places(tree):
    """Every (container, key) below `tree`, depth first; at most 2,000."""
    found, open_ = [], [tree]
    while open_ and len(found) < 2000:
        node = open_.pop()
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in children:
            found.append((node, key))
            open_.append(child)
    return found


def near(r, old):
    """A value similar to `old`, but different."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, (int, float)):
        return r.choice([old + 1, old - 1, old * 2, -old, old // 2 if isinstance(old, int) else old / 2, float(old) if abs(old) < 1e300 else 0, r.choice(NUMBERS)])
    if isinstance(old, str) and old:
        at = r.randrange(len(old))
        return r.choice([old[:at] + old[at + 1:], old[:at] + r.choice(STRINGS)[:3] + old[at:], old.upper(), old + " ", old * 3])
    return value(r)


def mutate_tree(r, tree):
    """Changes one place of a JSON tree in place."""
    all_places = places(tree)
    if not all_places:
        return
    node, key = r.choice(all_places)
    act = r.randrange(5)
    if act == 0:
        del node[key]
    elif act == 1:
        node[key] = value(r)
    elif act == 2 and isinstance(node, dict):
        node[r.choice(STRINGS[:6] + ["rope_scaling", "quantization", "x"])] = value(r)
    elif act == 3 and isinstance(node, list):
        node.extend([node[key]] * r.choice([1, 2, 300]))
    else:
        node[key] = near(r, node[key])


def json_text(r, tree):
    """The text of a tree; sometimes one that JSON does not allow, or one that is very deep."""
    text = json.dumps(tree, ensure_ascii=r.random() < 0.5)
    odd = r.randrange(30)
    if odd == 0:
        return "[" * 100_000 + text
    if odd == 1:
        return "\ufeff" + text
    if odd == 2:
        return text.replace("0", "NaN", 1)
    if odd == 3:
        return text.replace("}", ",}", 1)
    if odd == 4:
        return text[:1] + text[1:].replace(text[1:20], text[1:20] * 2, 1)
    return text


def mutate_bytes(r, data):
    """Makes one change in some bytes."""
    data = bytearray(data)
    act = r.randrange(7)
    at = r.randrange(len(data)) if data else 0
    size = min(len(data) - at, r.choice([1, 1, 2, 8, 64, 1024])) if data else 0
    if act == 0:
        del data[at:]
    elif act == 1:
        del data[at:at + size]
    elif act == 2:
        data[at:at + size] = bytes(size)
    elif act == 3:
        data[at:at + size] = r.randbytes(size)
    elif act == 4:
        data[at:at] = data[at:at + size]
    elif act == 5:
        data[at:at] = r.choice(STRINGS).encode("utf-8", "surrogatepass")
    elif data:
        data[at] ^= 1 << r.randrange(8)
    return bytes(data)


def mutate_lines(r, text):
    """Drops, doubles or moves one line of a text file, or replaces one of its values."""
    lines = text.splitlines() or [""]
    at = r.randrange(len(lines))
    act = r.randrange(6)
    if act == 0:
        del lines[at]
    elif act == 1:
        lines.insert(at, lines[at])
    elif act == 2:
        lines.insert(r.randrange(len(lines)), lines.pop(at))
    elif act == 3:
        lines.insert(at, r.choice(["[[device]]", "[cluster]", "[x]", "memry = \"1GiB\"", "= 3", "name = ", "# \u2028", "\0"]))
    elif " = " in lines[at]:
        key, _, old = lines[at].partition(" = ")
        new = r.choice([json.dumps(r.choice(STRINGS)), str(r.choice(NUMBERS)), "true", "[]", "1979-05-27", "nan", "'''", old + old, "\"512MB\"", "\"1e9\"", "\"-1GiB\""])
        lines[at] = f"{key} = {new}"
    else:
        lines[at] = str(near(r, lines[at]))
    return "\n".join(lines) + "\n"
