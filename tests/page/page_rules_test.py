"""What holds for the files of the page whatever a browser shows: size, no code inside the document,
nothing from elsewhere, names that tests hold on to, colours that can be read."""
import re
import unittest
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "coordinator/page"
MOST_BYTES = 150_000
MOST_REQUESTS = 12

FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted(PAGE.iterdir()) if path.suffix in (".html", ".css", ".js", ".svg")}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}

TEST_IDS = {"model", "status", "chat-log", "message", "message-stats", "chat-input", "chat-send", "chat-stop", "measured-ms", "predicted-ms",
            "device-card", "memory-kind", "streams", "link-row", "timeline", "span", "key-dialog", "key-input"}

# Colours of text on what it stands on: 4.5 (WCAG 2.2, 1.4.3). Of bars, dots and borders of fields: 3
# (1.4.11).
TEXTS = [(text, ground) for ground in ("page", "surface", "raised") for text in ("text", "muted", "accent", "wrong")] + [
    ("on-accent", "accent"), ("wait-text", "page"), ("wait-text", "surface")]
SHAPES = [(shape, ground) for ground in ("page", "surface", "ground") for shape in ("compute", "load", "send", "other", "idle")] + [
    ("edge", "page"), ("edge", "surface"), ("accent", "page"), ("wrong", "surface")]


class Document(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts_text, self.inside = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside in ("script", "style"):
            self.scripts_text += data.strip()

    def handle_endtag(self, tag):
        self.inside = ""

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def luminance(colour):
    parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes(css):
    """{theme: {variable: colour}} of the two blocks of variables."""
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    light, dark = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks]
    return {"light": light, "dark": dark}


class PageRulesTest(unittest.TestCase):
    document = Document(FILES["index.html"])

    def test_it_is_small(self):
        self.assertLessEqual(sum(len(text.encode()) for text in FILES.values()), MOST_BYTES)
        self.assertLess(len(FILES) + 1, MOST_REQUESTS)  # and the stream of events

    def test_no_code_and_no_style_is_inside_the_document(self):
        self.assertEqual(self.document.scripts_text, "")
        for tag, attributes in self.document.elements:
            self.assertNotIn(tag, ("style", "iframe", "object", "embed", "base"))
            for name in attributes:
                self.assertFalse(name == "style" or name.startswith("on"), f"<{tag} {name}>")
        for name in ("<style", "<script", "style=", "<foreignObject", "href"):
            self.assertNotIn(name, FILES["icon.svg"])

    def test_text_is_set_as_text_and_nothing_is_evaluated_or_kept(self):
        forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\b|new Function|"
                               r"setTimeout\(['\"]|localStorage|indexedDB|document\.cookie|setAttribute\(['\"](?:style|on)|\.cssText|javascript:")
        for name, text in SCRIPTS.items():
            self.assertEqual(forbidden.findall(text), [], name)

    def test_nothing_comes_from_elsewhere(self):
        for name, text in FILES.items():
            found = re.findall(r"(?:https?:|wss?:|data:|blob:)?//[\w.]+|url\(|@import", re.sub(r"^\s*//.*|\s//\s.*", "", text, flags=re.M))
            self.assertEqual([what for what in found if what != "http://www.w3.org"], [], name)  # the name of SVG, which nobody fetches

    def test_every_file_is_there_and_compiled_in(self):
        named = [attributes.get("href") or attributes.get("src") for tag in ("link", "script", "img") for attributes in self.document.all(tag)]
        for text in SCRIPTS.values():
            named += re.findall(r"^import .* from '\./([\w.-]+)';$", text, re.M)
        self.assertEqual(set(named), set(FILES) - {"index.html"})
        built = re.search(r"set\(PAGE_FILES ([^)]*)\)", (PAGE / "CMakeLists.txt").read_text()).group(1).split()
        self.assertEqual(sorted(built), sorted(FILES))

    def test_tests_find_their_elements(self):
        ids = {attributes.get("data-testid") for _, attributes in self.document.elements}
        ids |= set(re.findall(r"dataset\.testid = .*?'([\w-]+)';", "".join(SCRIPTS.values())))
        self.assertEqual(TEST_IDS - ids, set())

    def test_the_document_names_itself_and_its_parts(self):
        self.assertEqual(self.document.all("html")[0].get("lang"), "en")
        for tag in ("title", "h1", "main", "header"):
            self.assertEqual(len(self.document.all(tag)), 1, tag)
        labels = {attributes.get("for") for attributes in self.document.all("label")}
        for field in self.document.all("input") + self.document.all("textarea"):
            self.assertIn(field["id"], labels)
        for image in self.document.all("img"):
            self.assertIn("alt", image)
        for button in self.document.all("button"):
            self.assertIn("type", button)
        ids = [attributes["id"] for _, attributes in self.document.elements if "id" in attributes]
        self.assertEqual(len(ids), len(set(ids)))

    def test_ids_that_scripts_use_are_there(self):
        ids = {attributes.get("id") for _, attributes in self.document.elements}
        for name, text in SCRIPTS.items():
            for used in re.findall(r"(?:byId|fromTemplate)\('([\w-]+)'\)", text):
                self.assertIn(used, ids, name)

    def test_colours_can_be_told_apart_in_both_themes(self):
        of = themes(FILES["lime.css"])
        self.assertEqual(of["light"].keys(), of["dark"].keys())
        for theme, colours in of.items():
            for pairs, least in ((TEXTS, 4.5), (SHAPES, 3.0)):
                for front, ground in pairs:
                    with self.subTest(theme=theme, front=front, ground=ground):
                        self.assertGreaterEqual(round(contrast(colours[front], colours[ground]), 2), least)

    def test_nothing_moves_by_itself(self):
        self.assertEqual(re.findall(r"@keyframes|animation|transition", FILES["lime.css"]), [])

    def test_colours_are_variables(self):
        rules = re.sub(r":root \{.*?\}", "", FILES["lime.css"], flags=re.S)
        self.assertEqual(re.findall(r"#[0-9a-f]{3,8}\b(?![^{]*\{)", rules), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
