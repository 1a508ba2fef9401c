"""Logits and text over HTTP are those of `lime run`: alone, in company, from cached prompts, over three devices, and over one that dies."""
import unittest

import wire
from models import BOS
from processes import Service, lime
from serve_case import ServeCase, begun

PROMPT = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 3
TOKENS, SEED, TEMPERATURE = 96, 11, 0.8
COMPANY = 15


def body(prompt=PROMPT, **more):
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": TEMPERATURE, "seed": SEED, "ignore_eos": True, "hash_logits": True, "return_token_ids": True, **more}


def bits_of(choice):
    return choice["logits_xxh3"], choice["token_ids"], choice["text"]


def bits_of_run(model, prompt=PROMPT):
    """What one process computes for `body`."""
    run = lime("run", model, "--prompt", prompt, "--max-tokens", TOKENS, "--temperature", TEMPERATURE, "--seed", SEED, "--ignore-eos", "--hash-logits", "--threads", "1")
    return bits_of(run)


def bits_of_stream(case, stream, at_tenth=lambda: None):
    """(bits, `lime` of the last chunk). Calls `at_tenth` in mid-stream."""
    text, last, lime = "", {}, {}
    for number, chunk in enumerate(stream):
        case.assertNotIn("error", chunk)
        lime = chunk.get("lime", lime)
        for choice in chunk["choices"]:
            text += choice["text"]
            last |= choice
        if number == 10:
            at_tenth()
    return (last["logits_xxh3"], last["token_ids"], text), lime


class BitsTest(ServeCase):
    context, parallel = 1024, COMPANY + 1
    flags = ("--pace", "5")  # company lasts longer than the answer that is looked at
    template = "none"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.alone = bits_of_run(cls.service.model)

    def complete_bits(self, **more):
        answer = self.post("/v1/completions", body(**more))
        return bits_of(answer["choices"][0]), answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_alone(self):
        self.assertEqual(self.complete_bits(cache_prompt=False), (self.alone, 0))

    def test_streamed(self):
        self.assertEqual(bits_of_stream(self, self.stream("/v1/completions", body()))[0], self.alone)

    def test_from_a_cached_prompt(self):
        self.complete_bits()
        bits, cached = self.complete_bits()
        self.assertEqual(bits, self.alone)
        self.assertGreaterEqual(cached, 16)
        self.assertEqual(cached % 16, 0)
        self.assertEqual(self.complete_bits(cache_prompt=False), (self.alone, 0))

    def test_a_prompt_that_goes_on_uses_its_beginning(self):
        longer = PROMPT + "It dreams of hens."
        self.complete_bits()
        bits, cached = self.complete_bits(prompt=longer)
        self.assertEqual(bits, bits_of_run(self.service.model, longer))
        self.assertGreaterEqual(cached, len(PROMPT) // 16 * 16)

    def test_in_the_company_of_fifteen_others(self):
        for _ in range(10):  # on a busy machine the others may have ended before this client asks
            company = [self.stream("/v1/completions", body(f"{number} others ", max_tokens=900, seed=number)) for number in range(COMPANY)]
            for stream in company:
                begun(stream)
            self.assertEqual(bits_of_stream(self, self.stream("/v1/completions", body(cache_prompt=False)))[0], self.alone)
            to_the_end = self.metrics()["lime_requests_running"] >= COMPANY
            for stream in company:
                stream.close()
            if to_the_end:
                return
        self.fail("the others ended before this stream, each time")

    def test_choices_of_one_prompt(self):
        answer = self.post("/v1/completions", body(n=4))
        self.assertEqual(bits_of(answer["choices"][0]), self.alone)
        self.assertEqual(len({choice["logits_xxh3"] for choice in answer["choices"]}), 4)

    def test_a_later_choice_is_that_of_its_number_in_any_request(self):
        second = self.post("/v1/completions", body(n=2))["choices"][1]
        self.assertEqual(bits_of(self.post("/v1/completions", body(n=3))["choices"][1]), bits_of(second))

    def test_scores_are_those_of_lime_score(self):
        ids = [BOS, *b"The owl said that the night was young."]
        scored = lime("score", self.service.model, "--ids", ",".join(map(str, ids)), "--threads", "1")["positions"]
        said = self.post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0})["choices"][0]["logprobs"]["token_logprobs"]
        self.assertEqual(said[0], None)
        for at in range(1, len(ids)):
            self.assertAlmostEqual(said[at], scored[at]["logprob"], places=4)

    def test_the_fingerprint_is_the_same_on_any_server(self):
        other = Service(self.service.model, over="process", context=256, parallel=1)
        try:
            said = wire.call(other.url, "POST", "/v1/completions", body("a", max_tokens=4)).json()
        finally:
            other.close()
        here = self.post("/v1/completions", body("a", max_tokens=4))
        self.assertEqual((said["system_fingerprint"], bits_of(said["choices"][0])), (here["system_fingerprint"], bits_of(here["choices"][0])))


class LostDeviceTest(ServeCase):
    over, context, parallel, template = "cluster", 1024, 4, "none"
    flags = ("--pace", "20")

    def test_a_stream_goes_on_where_a_device_is_killed(self):
        alone = bits_of_run(self.service.model)
        for lost in range(3):  # the first has the embedding, the last the head
            with self.subTest(device=lost):
                beside = self.stream("/v1/completions", body("Beside it ", max_tokens=200))

                def lose():
                    self.service.cluster.kill(lost)
                    self.service.cluster.start_again(lost)

                stream = self.stream("/v1/completions", body(cache_prompt=False))
                bits, lime = bits_of_stream(self, stream, lose)
                self.assertEqual((bits, lime["recoveries"], stream.done), (alone, 1, 1))
                self.assertFalse(any("error" in chunk for chunk in beside))

    def test_a_plan_without_the_device_gives_the_same_bits(self):
        service = self.start("--patience", "0")
        stream = wire.Stream(service.url, "/v1/completions", body(stream=True))
        bits, _ = bits_of_stream(self, stream, lambda: service.cluster.kill(1))
        self.assertEqual(bits, bits_of_run(service.model))


if __name__ == "__main__":
    unittest.main(verbosity=2)
