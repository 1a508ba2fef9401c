"""Clients of npm in their newest versions: openai, the AI SDK with two providers, LangChain; and with openai calls in every syntax and twenty schemas."""
import sys
import unittest
from pathlib import Path

from models import SYNTAXES
from serve_case import ServeCase

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "npm"))
import node  # noqa: E402

KEY = "a key with 20 signs".replace(" ", "-")


class ClientsTest(ServeCase):
    flags = ("--name", "tiny", "--api-key", KEY)

    @classmethod
    def setUpClass(cls):
        node.need(cls, "openai", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@langchain/openai")
        super().setUpClass()

    def run_file(self, name):
        node.run(self, [HERE / "clients" / name], {"LIME_URL": self.url, "LIME_KEY": KEY, "LIME_MODEL": "tiny"})

    def test_openai(self):
        self.run_file("openai_test.mjs")

    def test_the_ai_sdk(self):
        self.run_file("ai_sdk_test.mjs")

    def test_langchain(self):
        self.run_file("langchain_test.mjs")


class SchemasTest(ServeCase):
    flags = ("--name", "tiny")

    @classmethod
    def setUpClass(cls):
        node.need(cls, "openai", "ajv", "ajv-formats")
        super().setUpClass()

    def test_twenty_schemas(self):
        node.run(self, [HERE / "clients/schemas_test.mjs"], {"LIME_URL": self.url, "LIME_MODEL": "tiny"})


class SyntaxesTest(ServeCase):
    flags = ("--name", "tiny")

    @classmethod
    def setUpClass(cls):
        node.need(cls, "openai")
        super().setUpClass()

    def test_calls_in_every_syntax(self):
        for syntax in SYNTAXES:
            with self.subTest(syntax):
                url = self.url if syntax == self.template else self.start(template=syntax).url
                node.run(self, [HERE / "clients/tools_test.mjs"], {"LIME_URL": url, "LIME_MODEL": "tiny", "LIME_SYNTAX": syntax})


if __name__ == "__main__":
    unittest.main(verbosity=2)
