#!/usr/bin/env python3
"""Whether a request that makes room for others on a GPU gives the answer that it gives alone.

Asks requests one by one, all at once, and all at once while this script holds so much of the GPU's memory that the server has no room
for all of them: the youngest are preempted and read again. Nobody goes on from a cached prefix, which would be rounded otherwise.
Fails if an answer differs. Nothing but the standard library and the driver is needed.

Example: benches/gpu/short_of_memory.py target/release/kvas llama-3.2-1b.gguf --free 3.0
"""

import argparse
import ctypes
import sys
import threading

from served import get, post, serving

SAID = {"temperature": 0, "ignore_eos": True, "return_tokens": True, "cache_prompt": False}
WORDS = "zebra apple night green under seven happy water train music glass snow fire paper river cloud".split()


def hold(free_bytes):
    """Takes the memory of the first GPU but for so much, until the process ends."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        if code := getattr(driver, name)(*arguments):
            sys.exit(f"{name}: error {code} of the driver")

    context, free, total, pointer = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    if free.value <= free_bytes:
        sys.exit(f"--free: {free.value} bytes are free, expected more than {free_bytes}")
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(free.value - free_bytes))


def answer(port, number, tokens):
    body = {"prompt": f"{WORDS[number]}: once upon a time there was a fox who " * (2 + number % 4), "n_predict": tokens}
    reply = post(port, "/completion", body | SAID)
    if "tokens" not in reply:
        sys.exit(f"request {number}: {reply}")
    return reply["tokens"]


def at_once(port, tokens):
    answers = [None] * len(WORDS)

    def ask(number):
        answers[number] = answer(port, number, tokens)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(WORDS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def preemptions(port):
    lines = get(port, "/metrics")[1].decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("kvas_num_preemptions_total"))


def main():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("kvas", help="the kvas binary")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--free", type=float, required=True, metavar="GIB", help="memory that the server finds, its context included")
    parser.add_argument("--tokens", type=int, default=2500, metavar="N", help="tokens of an answer (default: 2500)")
    asked = parser.parse_args()
    flags = ["--device", "cuda", "-c", asked.tokens + 512, "--snapshot-host", 0, "--parallel", len(WORDS)]
    with serving(asked.kvas, asked.model, *flags) as port:
        alone = [answer(port, number, asked.tokens) for number in range(len(WORDS))]
    with serving(asked.kvas, asked.model, *flags) as port:
        together = at_once(port, asked.tokens)
    hold(int(asked.free * 2**30))
    with serving(asked.kvas, asked.model, *flags) as port:
        short, times = at_once(port, asked.tokens), preemptions(port)
    for name, answers in [("at once", together), (f"at once with {times} preemptions", short)]:
        same = sum(a == b for a, b in zip(alone, answers))
        print(f"{name}: {same} of {len(WORDS)} answers of {asked.tokens} tokens are those given alone", flush=True)
    if not times:
        sys.exit("nothing was preempted, expected a smaller --free")
    if together != alone or short != alone:
        sys.exit("answers differ")


main()
