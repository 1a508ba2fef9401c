"""Each endpoint, streaming or not: the fields of its answers, and that both ways say the same."""
import json
import re
import unittest

import wire
from models import BOS, EOS
from serve_case import ServeCase, chat_body, text_of

SEED = 18446744073709551615
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "seed": SEED, "max_tokens": 24}
LIME_FIELDS = {"seed", "numerics_id", "plan_epoch", "recoveries", "plan_changes", "timings"}
TIMINGS = {"queue_ms", "prompt_ms", "ttft_ms", "ms_per_token", "predicted_ms_per_token"}


class SmallEndpointsTest(ServeCase):
    flags = ("--alias", "gpt-test", "--name", "org/tiny")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = wire.call(cls.service.url, "GET", "/lime/cluster").json()  # as soon as the server is ready

    def test_health_is_ok_without_a_body_for_head(self):
        self.assertEqual(self.call("GET", "/health").json(), {"status": "ok"})
        answer = self.call("HEAD", "/health")
        self.assertEqual((answer.status, answer.body), (200, b""))

    def test_models_are_listed_by_name_and_alias(self):
        listed = self.call("GET", "/v1/models").json()
        self.assertEqual(listed["object"], "list")
        self.assertEqual([model["id"] for model in listed["data"]], ["org/tiny", "gpt-test"])
        for model in listed["data"]:
            self.assertEqual((model["object"], model["max_model_len"]), ("model", self.context))
            self.assertIsInstance(model["created"], int)
            self.assertIsInstance(model["owned_by"], str)
            self.assertEqual(self.call("GET", f"/v1/models/{model['id']}").json(), model)

    def test_an_answer_names_its_model_and_takes_both_names(self):
        for name in ("org/tiny", "gpt-test"):
            self.assertIn(self.chat(model=name)["model"], ("org/tiny", name))

    def test_text_becomes_ids_and_comes_back(self):
        text = "Zebra 3 \U0001f993"
        said = self.post("/tokenize", {"content": text})
        self.assertEqual(said, {"tokens": list(text.encode()), "count": len(text.encode()), "max_model_len": self.context})
        with_bos = self.post("/tokenize", {"prompt": text})["tokens"]
        self.assertEqual(with_bos[-len(said["tokens"]):], said["tokens"])
        back = self.post("/detokenize", {"tokens": said["tokens"]})
        self.assertEqual(back, {"content": text, "prompt": text})

    def test_tokens_have_pieces(self):
        said = self.post("/tokenize", {"content": "a\u20ac", "with_pieces": True})
        self.assertEqual(said["tokens"], [{"id": 97, "piece": "a"}, {"id": 0xE2, "piece": [0xE2]}, {"id": 0x82, "piece": [0x82]}, {"id": 0xAC, "piece": [0xAC]}])

    def test_messages_become_the_prompt_that_is_computed(self):
        messages = chat_body()["messages"]
        prompt = self.post("/apply-template", {"messages": messages})["prompt"]
        self.assertEqual(prompt, "[user]\nHello\n[assistant]\n")
        ids = self.post("/tokenize", {"messages": messages})
        self.assertEqual(ids["count"], len(prompt))
        self.assertEqual(self.chat()["usage"]["prompt_tokens"], ids["count"])

    def test_every_answer_has_the_id_of_its_request(self):
        for path in ("/health", "/v1/models", "/nowhere", "/metrics", "/"):
            self.assertEqual(self.call("GET", path, headers=[("x-request-id", "mine-1.a_B")]).headers["x-request-id"], "mine-1.a_B")
        ours = [self.call("GET", "/health", headers=[("x-request-id", "not mine!")]).headers["x-request-id"] for _ in range(2)]
        self.assertNotIn("not mine!", ours)
        self.assertNotEqual(ours[0], ours[1])

    def test_the_page_and_the_state_of_the_cluster_are_there(self):
        page = self.call("GET", "/")
        self.assertEqual((page.status, page.headers["content-type"].split(";")[0]), (200, "text/html"))
        unchanged = self.call("GET", "/", headers=[("If-None-Match", page.headers["etag"])])
        self.assertEqual((unchanged.status, unchanged.body), (304, b""))
        for cluster in (self.cluster, self.call("GET", "/lime/cluster").json()):
            self.assertEqual(len(cluster["devices"]), 3 if self.over == "cluster" else 1)
            self.assertEqual({device["state"] for device in cluster["devices"]}, {"ok"})

    def test_metrics_have_help_and_samples_from_the_start(self):
        text = self.call("GET", "/metrics").body.decode()
        helped = set(re.findall(r"(?m)^# HELP (\w+) \S", text))
        self.assertLessEqual({"lime_requests_running", "lime_generations_total", "lime_http_requests_total", "lime_time_per_token_seconds", "process_open_fds"}, helped)
        self.assertEqual(set(re.findall(r"(?m)^# TYPE (\w+) (?:counter|gauge|histogram)$", text)), helped)
        for name in helped:
            self.assertRegex(text, rf"(?m)^{name}(_bucket|_sum|_count)?(\{{.*\}})? \d")


class ChatTest(ServeCase):
    def test_an_answer_has_every_field(self):
        answer = self.chat(**SAMPLED)
        self.assertRegex(answer["id"], r"^chatcmpl-\w+$")
        self.assertEqual(answer["object"], "chat.completion")
        self.assertRegex(answer["system_fingerprint"], "^fp_[0-9a-f]+$")
        [choice] = answer["choices"]
        self.assertEqual((choice["index"], choice["finish_reason"], choice["message"]["role"], choice["message"]["refusal"]), (0, "length", "assistant", None))
        self.assertIsInstance(choice["message"]["content"], str)
        usage = answer["usage"]
        self.assertEqual((usage["completion_tokens"], usage["total_tokens"]), (24, usage["prompt_tokens"] + 24))
        self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], 0)
        self.assertGreaterEqual(answer["lime"].keys(), LIME_FIELDS)
        self.assertEqual(answer["lime"]["timings"].keys(), TIMINGS)
        self.assertEqual(answer["lime"]["seed"], SEED)

    def test_a_stream_says_what_the_answer_says(self):
        whole = self.chat(**SAMPLED)
        stream = self.stream("/v1/chat/completions", chat_body(**SAMPLED, stream_options={"include_usage": True}))
        self.assertEqual((stream.head.headers["content-type"].split(";")[0], stream.head.headers["cache-control"]), ("text/event-stream", "no-cache"))
        chunks = list(stream)
        self.assertEqual(stream.done, 1)
        self.assertEqual(len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}), 1)
        self.assertEqual({chunk["object"] for chunk in chunks}, {"chat.completion.chunk"})
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual([chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]], [None] * (len(chunks) - 2) + ["length"])
        self.assertEqual((chunks[-2]["choices"][0]["delta"], chunks[-1]["choices"]), ({}, []))
        self.assertEqual([chunk["usage"] for chunk in chunks[:-1]], [None] * (len(chunks) - 1))
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        self.assertEqual(chunks[-1]["lime"]["seed"], SEED)
        self.assertEqual(text_of(chunks), whole["choices"][0]["message"]["content"])
        self.assertEqual(chunks[0]["system_fingerprint"], whole["system_fingerprint"])

    def test_without_the_counts_the_last_chunk_has_what_is_ours(self):
        chunks = list(self.stream("/v1/chat/completions", chat_body(**SAMPLED)))
        self.assertFalse(any("usage" in chunk for chunk in chunks))
        self.assertEqual([("lime" in chunk) for chunk in chunks], [False] * (len(chunks) - 1) + [True])

    def test_choices_differ_and_each_is_the_same_again(self):
        first, second = (self.chat(n=4, **SAMPLED, hash_logits=True, return_token_ids=True) for _ in range(2))
        self.assertEqual([choice["index"] for choice in first["choices"]], [0, 1, 2, 3])
        self.assertEqual(len({tuple(choice["token_ids"]) for choice in first["choices"]}), 4)
        self.assertEqual([(c["message"], c["logits_xxh3"]) for c in first["choices"]], [(c["message"], c["logits_xxh3"]) for c in second["choices"]])
        self.assertEqual(first["choices"][0]["token_ids"], self.chat(**SAMPLED, return_token_ids=True)["choices"][0]["token_ids"])
        self.assertEqual(first["usage"]["completion_tokens"], 4 * SAMPLED["max_tokens"])

    def test_a_stop_string_is_no_part_of_the_answer(self):
        whole = self.chat(max_tokens=64, **{k: v for k, v in SAMPLED.items() if k != "max_tokens"})["choices"][0]["message"]["content"]
        stop = next(whole[at:at + 2] for at in range(8, len(whole)) if "\ufffd" not in whole[at:at + 2] and len(whole[at:at + 2]) == 2)
        body = chat_body(**{**SAMPLED, "max_tokens": 64}, stop=["never to be found", stop])
        choice = self.post("/v1/chat/completions", body)["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (whole[:whole.index(stop)], "stop"))
        self.assertEqual(text_of(self.stream("/v1/chat/completions", body)), choice["message"]["content"])

    def test_log_probabilities_come_with_their_tokens(self):
        body = chat_body(**SAMPLED, logprobs=True, top_logprobs=5, logit_bias={str(EOS): -100})  # end tokens have no entry
        entries = self.post("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(entries), SAMPLED["max_tokens"])
        for entry in entries:
            self.assertLessEqual(entry["logprob"], 0)
            self.assertEqual(len(entry["top_logprobs"]), 5)
            self.assertEqual(sorted((top["logprob"] for top in entry["top_logprobs"]), reverse=True), [top["logprob"] for top in entry["top_logprobs"]])
        streamed = [entry for chunk in self.stream("/v1/chat/completions", body) for choice in chunk["choices"]
                    for entry in (choice["logprobs"] or {"content": []})["content"]]
        self.assertEqual(streamed, entries)

    def test_a_bias_forbids_and_forces(self):
        ids = self.chat(max_tokens=4, logit_bias={"65": 100}, return_token_ids=True)["choices"][0]["token_ids"]
        self.assertEqual(ids, [65] * 4)
        ids = self.chat(max_tokens=16, logit_bias={"65": 100, "66": 99, "67": 98}, frequency_penalty=2, return_token_ids=True)["choices"][0]["token_ids"]
        self.assertEqual({65, 66, 67}, set(ids))
        ids = self.chat(max_tokens=64, logit_bias={str(id): -100 for id in range(128, 256)}, temperature=2, return_token_ids=True)["choices"][0]["token_ids"]
        self.assertFalse([id for id in ids if 128 <= id < 256])

    def test_a_message_goes_on_where_it_stands(self):
        messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}]
        prompt = self.post("/apply-template", {"messages": messages, "continue_final_message": True, "add_generation_prompt": False})["prompt"]
        self.assertEqual(prompt, "[user]\nCount\n[assistant]\nOne, two,")

    def test_parts_of_text_are_joined_and_developer_is_system(self):
        parts = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        self.assertEqual(self.post("/apply-template", {"messages": parts})["prompt"], "[system]\nBe short.\n[user]\nab\n[assistant]\n")


class CompletionsTest(ServeCase):
    def test_prompts_of_every_kind(self):
        ids = [BOS, *b"Once"]
        by_text, by_ids = self.complete("Once", max_tokens=12), self.complete(ids, max_tokens=12)
        both = self.complete([ids, list(b"Twice")], max_tokens=12, n=2)
        self.assertEqual((by_text["object"], by_text["usage"]["completion_tokens"]), ("text_completion", 12))
        self.assertRegex(by_text["id"], r"^cmpl-\w+$")
        self.assertIn(by_text["choices"][0]["text"], (by_ids["choices"][0]["text"], self.complete(list(b"Once"), max_tokens=12)["choices"][0]["text"]))
        self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1, 2, 3])
        self.assertEqual(both["choices"][0]["text"], by_ids["choices"][0]["text"])
        self.assertEqual(both["choices"][1]["text"], by_ids["choices"][0]["text"])  # greedy
        self.assertEqual(both["choices"][3]["text"], self.complete(list(b"Twice"), max_tokens=12)["choices"][0]["text"])

    def test_sixteen_tokens_by_default_and_a_stream_says_the_same(self):
        body = {"prompt": "Once", "temperature": 0, "ignore_eos": True}
        whole = self.post("/v1/completions", body)
        self.assertEqual(whole["usage"]["completion_tokens"], 16)
        chunks = list(self.stream("/v1/completions", body))
        self.assertEqual("".join(choice["text"] for chunk in chunks for choice in chunk["choices"]), whole["choices"][0]["text"])

    def test_a_prompt_is_scored_without_an_answer(self):
        scored = self.complete([BOS, *b"abc"], max_tokens=0, echo=True, logprobs=2)["choices"][0]
        self.assertEqual(scored["text"], "abc")
        self.assertEqual(scored["logprobs"]["tokens"][1:], ["a", "b", "c"])
        self.assertEqual(scored["logprobs"]["token_logprobs"][0], None)
        self.assertTrue(all(value < 0 for value in scored["logprobs"]["token_logprobs"][1:]))
        self.assertEqual(scored["logprobs"]["text_offset"], [0, 0, 1, 2])
        again = self.complete([BOS, *b"abc"], max_tokens=1, echo=True, logprobs=2)["choices"][0]["logprobs"]
        self.assertEqual(again["token_logprobs"][:4], scored["logprobs"]["token_logprobs"])
        self.assertEqual(len(again["tokens"]), 5)

    def test_an_end_token_has_an_entry_as_every_token(self):
        """lm-evaluation-harness takes the last entry for that of the answer's token, which may end the answer."""
        body = {"prompt": [BOS, *b"abc"], "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        ended, cut = (self.post("/v1/completions", {**body, "logit_bias": {str(EOS): bias}})["choices"][0] for bias in (100, -100))
        self.assertEqual((ended["finish_reason"], cut["finish_reason"]), ("stop", "length"))
        self.assertEqual((ended["text"], ended["logprobs"]["token_logprobs"][:4]), ("abc", cut["logprobs"]["token_logprobs"][:4]))
        for choice in (ended, cut):
            self.assertEqual({len(values) for values in choice["logprobs"].values()}, {5})
            self.assertLess(choice["logprobs"]["token_logprobs"][4], 0)
        streamed = [value for chunk in self.stream("/v1/completions", {**body, "logit_bias": {str(EOS): 100}})
                    for choice in chunk["choices"] for value in (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]]
        self.assertEqual(streamed, ended["logprobs"]["token_logprobs"])


class OllamaTest(ServeCase):
    def lines(self, path, body):
        answer = self.call("POST", path, body)
        self.assertEqual((answer.status, answer.headers["content-type"].split(";")[0]), (200, "application/x-ndjson"))
        return [json.loads(line) for line in answer.body.splitlines() if line.strip()]

    def test_the_model_is_shown_in_every_list(self):
        version = self.call("GET", "/api/version").json()["version"]
        self.assertGreaterEqual([int(part) for part in version.split(".")], [0, 6, 4], "VS Code refuses older ones")
        [listed] = self.call("GET", "/api/tags").json()["models"]
        self.assertEqual(self.call("GET", "/api/ps").json()["models"][0]["name"], listed["name"])
        shown = self.post("/api/show", {"model": listed["name"]})
        self.assertIn("tools", shown["capabilities"])
        self.assertEqual(shown["model_info"]["general.basename"], listed["name"])

    def test_chat_and_generate_stream_lines_and_say_the_same_at_once(self):
        options = {"seed": 7, "num_predict": 12, "temperature": 0.8}
        for path, body, piece in (("/api/chat", {"messages": chat_body()["messages"]}, lambda line: line["message"]["content"]),
                                  ("/api/generate", {"prompt": "Once"}, lambda line: line["response"])):
            body = {"options": options, "ignore_eos": True} | body
            lines = self.lines(path, body)
            self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
            last = lines[-1]
            self.assertEqual((last["done_reason"], last["eval_count"]), ("length", 12))
            self.assertGreater(last["total_duration"], 0)
            whole = self.post(path, body | {"stream": False})
            self.assertEqual("".join(map(piece, lines)), piece(whole))

    def test_an_error_is_a_sentence(self):
        answer = self.call("POST", "/api/chat", {"model": "nobody", "messages": []})
        self.assertIn(answer.status, (400, 404))
        self.assertEqual(set(answer.json()), {"error"})


class ThinkingTest(ServeCase):
    template = "thinking"

    def test_what_is_thought_is_no_content(self):
        message = self.chat(max_tokens=12)["choices"][0]["message"]
        self.assertTrue(message["reasoning_content"])
        self.assertFalse(message["content"])
        chunks = list(self.stream("/v1/chat/completions", chat_body(max_tokens=12)))
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        self.assertEqual("".join(delta.get("reasoning_content", "") for delta in deltas), message["reasoning_content"])
        self.assertFalse(any(delta.get("content") for delta in deltas))

    def test_nothing_is_thought_where_that_is_asked(self):
        for more in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            message = self.chat(max_tokens=12, **more)["choices"][0]["message"]
            self.assertTrue(message["content"], more)
            self.assertFalse(message.get("reasoning_content"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
