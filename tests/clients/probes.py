"""What hurts people on servers of hybrid models, measured at full size on a built kvas.

usage: tests/clients/probes.py BINARY MODEL [PROBE...]   (gap pairs suffixes memory soak load batch; all but load and batch)

Starts a server for each probe and prints one JSON object a probe: what was measured, the bound, whether it holds. Fails if
one does not. `load` takes five minutes, and its bound is that of load.py; `batch` wants a model of half a gigabyte or more,
since what several sequences share is the weights.
"""

import http.client
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).parent


class Server:
    """A server of its own, ended with the probe."""

    def __init__(self, binary, model, *flags):
        command = [binary, "serve", "-m", model, "--device", "cpu", "--port", "0", "-v", *map(str, flags)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.planned, self.address = None, None
        for line in self.process.stderr:
            if found := re.search(r"(\d+) bytes planned", line):
                self.planned = int(found[1])
            if found := re.search(r"listening on http://(\S+)", line):
                self.address = found[1]
                break
        if not self.address:
            sys.exit(f"{model}: the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def open(self, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {reply.read(500)}")
        return reply

    def ask(self, path, body=None):
        return json.load(self.open(path, body))

    def stream(self, body, times):
        """Notes when each token came; ends with the stream."""
        for line in self.open("/completion", {**body, "stream": True}):
            if line.startswith(b"data: ") and b'"stop":false' in line:
                times.append(time.monotonic())

    def resident(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) * 1024

    def idle(self):
        while any(slot["is_processing"] for slot in self.ask("/slots")):
            time.sleep(0.02)


def tokens(count, seed):
    """So many tokens that nobody else has read."""
    return random.Random(seed).choices(range(300, 3000), k=count)


def greedy(prompt, count, **more):
    return {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, **more}


def together(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def gap(start):
    """The longest time between two tokens while 8192 tokens of another request are read: the bound and a step."""
    for bound in (500, 250):
        with start("-c", 10240, "--parallel", 2, "--max-decode-gap-ms", bound, "--spec", "off") as server:
            # Every token of the answer has a text: what waits for the rest of a character is not late.
            word = server.ask("/tokenize", {"content": "a"})["tokens"][-1]
            spoken = greedy(tokens(20, 2), 9000, logit_bias=[[word, 1e4]])
            # The pace is not known before the first prompt.
            server.ask("/completion", greedy(tokens(1024, 1), 1))
            times = []
            threading.Thread(target=server.stream, args=(spoken, times), daemon=True).start()
            while len(times) < 50:
                time.sleep(0.005)
            alone = max(gaps(times[10:50]))
            began, reply = time.monotonic(), server.ask("/completion", greedy(tokens(8192, 3), 1))
            ended = time.monotonic()
            during = sorted(gaps([at for at in times if began <= at <= ended]))
            yield {
                "probe": "gap",
                "bound_ms": bound,
                "step_ms": round(alone * 1e3, 1),
                "largest_gaps_ms": [round(gap * 1e3, 1) for gap in during[-6:]],
                "median_gap_ms": round(statistics.median(during) * 1e3, 1),
                "tokens_meanwhile": len(during),
                "prompt_tokens_per_second": round(reply["timings"]["prompt_per_second"]),
                "holds": during[-1] * 1e3 <= bound + alone * 1e3 and ended - began > 2 * bound / 1e3,
            }


def gaps(times):
    return [after - before for before, after in zip(times, times[1:])]


def pairs(start):
    """Two answers at once are as fast in every pair of slots: the fastest of nine rounds, within a tenth."""
    with start("-c", 2048, "--parallel", 3) as server:
        best = {pair: 0.0 for pair in ((0, 1), (1, 2), (0, 2))}
        for turn in range(9):
            for pair in best:
                speeds = []

                def answer(slot):
                    reply = server.ask("/completion", greedy(tokens(32, 100 * turn + slot), 96, id_slot=slot))
                    speeds.append(reply["timings"]["predicted_per_second"])

                together(*(lambda slot=slot: answer(slot) for slot in pair))
                best[pair] = max(best[pair], sum(speeds))
        yield {
            "probe": "pairs",
            "tokens_per_second": {f"{a},{b}": round(speed, 1) for (a, b), speed in best.items()},
            "holds": min(best.values()) >= 0.9 * max(best.values()),
        }


def suffixes(start):
    """After 6500 tokens that all share, 40, 376 or 1296 of their own; then the same after 400, which is less than others
    keep."""
    for shared in (6500, 400):
        with start("-c", 10240, "--parallel", 3) as server:
            prefix = tokens(shared, 10)
            server.ask("/completion", greedy(prefix + tokens(64, 11), 1))
            hits = {}
            for count in (40, 376, 1296):
                timings = server.ask("/completion", greedy(prefix + tokens(count, count), 1))["timings"]
                hits[count] = timings["cache_n"]
            again = server.ask("/completion", greedy(prefix + tokens(40, 12), 1))["timings"]["cache_n"]
            yield {
                "probe": "suffixes",
                "shared": shared,
                "reused": hits,
                "reused_later": again,
                # The first who leaves a prefix finds what is kept every 512 tokens, and leaves a snapshot where it ends.
                "holds": min(hits.values()) >= shared // 512 * 512 and min(hits[376], hits[1296], again) >= shared - 1,
            }


def memory(start):
    """What a server holds after 64 prompts that fill its slots, against the plan."""
    for parallel in (1, 2, 4, 8):
        with start("-c", 2048, "--parallel", parallel) as server:
            for seed in range(0, 64, parallel):
                together(*(
                    lambda seed=seed + number: server.ask("/completion", greedy(tokens(1900, seed), 4))
                    for number in range(parallel)
                ))
            look, held = server.ask("/memory"), server.resident()
            yield {
                "probe": "memory",
                "parallel": parallel,
                "planned_mib": server.planned >> 20,
                "held_mib": held >> 20,
                "snapshots": [look["snapshots"]["held"], look["snapshots"]["total"]],
                "free_pages": [look["pages"]["free"], look["pages"]["total"]],
                "holds": held <= 1.05 * server.planned,
            }


def soak(start):
    """1000 requests of many kinds, some given up: memory does not grow after the first 200, and nothing is held."""
    with start("-c", 4096, "--parallel", 4, "--queue", 64) as server:
        def client(number, first, last):
            for turn in range(first, last):
                generator = random.Random(number * 10007 + turn)
                body = greedy(tokens(generator.randint(4, 900), number * 10007 + turn), generator.randint(1, 24))
                if turn % 10 == 3:
                    # Left after the first token.
                    reply = server.open("/completion", {**body, "n_predict": 3000, "stream": True})
                    reply.readline()
                    reply.close()
                else:
                    server.ask("/completion", body)

        def round_of(first, last):
            together(*(lambda number=number: client(number, first, last) for number in range(8)))
            server.idle()
            return server.resident()

        before = round_of(0, 25)
        after = round_of(25, 125)
        look = server.ask("/memory")
        yield {
            "probe": "soak",
            "requests": 1000,
            "resident_mib_after_200": before >> 20,
            "resident_mib_after_1000": after >> 20,
            "planned_mib": server.planned >> 20,
            "busy": sum(slot["state"] != "idle" for slot in look["slots"]),
            "waiting": look["queue"],
            # What is kept for later fills up to what was planned; beyond that nothing grows.
            "holds": after <= 1.05 * server.planned and look["queue"] == 0,
        }


def load(start):
    """64 clients on 8 slots for five minutes: no error, nobody starved, memory as planned."""
    with start("-c", 1024, "--parallel", 8) as server:
        command = [sys.executable, HERE / "load.py", f"http://{server.address}", "64", "300"]
        held, running = [], subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while running.poll() is None:
            time.sleep(1)
            held.append(server.resident() >> 20)
        found = json.loads(running.stdout.read())
        server.idle()
        yield {
            "probe": "load",
            **found,
            "resident_mib": {at: held[at] for at in (5, 60, 120, 180, 240, len(held) - 1) if at < len(held)},
            "planned_mib": server.planned >> 20,
            "holds": running.returncode == 0 and held[-1] << 20 <= 1.05 * server.planned,
        }


def batch(start):
    """Eight answers at once against one alone, in turns: tokens per second."""
    with start("-c", 512, "--parallel", 8) as server:
        def speed(count, seed, length=48):
            all_times = [[] for _ in range(count)]
            together(*(
                lambda times=times, number=number: server.stream(
                    greedy(tokens(8, 1000 * seed + number), length, id_slot=number), times
                )
                for number, times in enumerate(all_times)
            ))
            # While all of them generate.
            began, ended = max(times[0] for times in all_times), min(times[-1] for times in all_times)
            return sum(sum(began < at <= ended for at in times) for times in all_times) / (ended - began)

        speed(8, 0, 8)
        ones, eights = [], []
        for turn in range(1, 5):
            ones.append(speed(1, turn))
            eights.append(speed(8, 100 + turn))
        ratio = statistics.median(eights) / statistics.median(ones)
        yield {
            "probe": "batch",
            "one": round(statistics.median(ones), 1),
            "eight": round(statistics.median(eights), 1),
            "ratio": round(ratio, 2),
            "holds": ratio >= 3,
        }


PROBES = {probe.__name__: probe for probe in (gap, pairs, suffixes, memory, soak, load, batch)}


def main():
    if len(sys.argv) < 3 or not set(sys.argv[3:]) <= set(PROBES):
        sys.exit(__doc__)
    binary, model = sys.argv[1:3]
    failed = False
    for name in sys.argv[3:] or ("gap", "pairs", "suffixes", "memory", "soak"):
        for found in PROBES[name](lambda *flags: Server(binary, model, *flags)):
            print(json.dumps(found), flush=True)
            failed |= not found["holds"]
    sys.exit(failed)


main()
