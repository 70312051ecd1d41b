#!/usr/bin/env python3
"""Tokens a second of a server by how its requests choose tokens: what is not found on the GPU has to be read from it.

Starts `kvas serve`, and asks as many requests at once as there are slots, in each way twice; the better one counts. Nothing but the
standard library is needed.

Example: benches/gpu/sampling.py target/release/kvas qwen3.5-4b.gguf --parallel 64
"""

import argparse
import sys
import threading
import time

from served import post, serving

PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "born": {"type": "integer"}}, "required": ["name", "born"]}
# What requests say besides their prompt.
WAYS = {
    "greedy": {"temperature": 0},
    "default": {},
    "presence_penalty": {"presence_penalty": 1.0},
    "repeat_penalty of all tokens": {"repeat_penalty": 1.1, "repeat_last_n": -1},
    "logit_bias": {"logit_bias": {"17": -100, "19": 2}},
    "dry": {"dry_multiplier": 0.8},
    "logprobs": {"logprobs": True, "top_logprobs": 5},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
    "no top_k": {"top_k": 0},
}
WAYS["one of all with a penalty"] = [WAYS["default"], WAYS["presence_penalty"]]


def ask(port, number, more, tokens, words, counts):
    text = f"Tell me about the number {number}." + " a" * words
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    body |= {"seed": number, "ignore_eos": True} | more
    answer = post(port, "/v1/chat/completions", body)
    if "usage" not in answer:
        print(f"request {number}: {answer}", file=sys.stderr)
        return
    counts.append(answer["usage"]["completion_tokens"])


def rate(port, way, requests, tokens, spread):
    """Tokens a second of all requests at once."""
    ways = way if isinstance(way, list) else [way]
    mores = [ways[0 if number else -1] for number in range(requests)]
    counts = []
    threads = [
        threading.Thread(target=ask, args=(port, number, more, tokens, number * spread // requests, counts))
        for number, more in enumerate(mores)
    ]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    if len(counts) < requests:
        sys.exit("a request failed")
    return sum(counts) / took


def main():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("kvas", help="the kvas binary")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parallel", type=int, default=64, metavar="N", help="slots, and requests at once (default: 64)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="tokens of an answer (default: 128)")
    parser.add_argument(
        "--spread", type=int, default=0, metavar="N", help="words that prompts differ by, so that contexts are of different lengths"
    )
    parser.add_argument("--ways", help=f"some of them, with commas: {', '.join(WAYS)} (default: all)")
    asked = parser.parse_args()
    ways = asked.ways.split(",") if asked.ways else list(WAYS)
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"expected ways of {', '.join(WAYS)}, not {', '.join(unknown)}")
    flags = ["--device", asked.device, "-c", asked.tokens + 2 * asked.spread + 128, "--parallel", asked.parallel]
    with serving(asked.kvas, asked.model, *flags) as port:
        for way in ways:
            rates = [rate(port, WAYS[way], asked.parallel, asked.tokens, asked.spread) for _ in range(2)]
            print(f"{way:28} {max(rates):9.0f} tokens/s", flush=True)


main()
