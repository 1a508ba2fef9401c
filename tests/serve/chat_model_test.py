"""The chat model that LIME ships, through the API: stories, questions about them, and calls of a tool. All greedy."""
import json
import unittest

from processes import ROOT
from serve_case import ServeCase


class ShippedModel:
    """In the place of random models."""

    def model(self, _):
        return ROOT / "models/lime-chat"


def tool(name, *parameters):
    properties = {parameter: {"type": "string", "maxLength": 30} for parameter in parameters}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(parameters)}}}


class ChatModelTest(ServeCase):
    context = 1024

    @classmethod
    def setUpClass(cls):
        cls.models = ShippedModel()
        cls.service = cls.start()

    def answer(self, messages, **more):
        body = {"messages": messages, "temperature": 0, **more}
        return self.post("/v1/chat/completions", body)["choices"][0]

    def text(self, messages, **more):
        choice = self.answer(messages, **more)
        self.assertEqual(choice["finish_reason"], "stop", choice)
        return choice["message"]["content"]

    def test_it_tells_a_story_and_answers_about_it(self):
        messages = [{"role": "user", "content": "Tell me a story about a fox named Nina."}]
        story = self.text(messages)
        self.assertIn("fox", story)
        self.assertIn("Nina", story)
        messages += [{"role": "assistant", "content": story}, {"role": "user", "content": "What was the name of the fox?"}]
        self.assertIn("Nina", self.text(messages))

    def test_it_calls_a_tool_and_tells_the_result(self):
        tools = [tool("get_weather", "city")]
        messages = [{"role": "user", "content": "What is the weather in Snowhill?"}]
        choice = self.answer(messages, tools=tools)
        self.assertEqual(choice["finish_reason"], "tool_calls", choice)
        call = choice["message"]["tool_calls"][0]
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Snowhill"})
        messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "12 degrees, rain"}]
        told = self.text(messages, tools=tools)
        for word in ("12", "rain", "Snowhill"):
            self.assertIn(word, told)

    def test_it_says_that_it_has_no_tool(self):
        messages = [{"role": "user", "content": "What is the weather in Snowhill?"}]
        self.assertIn("cannot", self.text(messages))

    def test_it_declines_what_is_no_story(self):
        self.assertIn("cannot", self.text([{"role": "user", "content": "What is the capital of France?"}]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
