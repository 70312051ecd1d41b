"""Many clients at once, each asking again as soon as it is answered: no error, nobody starved.

usage: tests/clients/load.py [URL] [CLIENTS] [SECONDS]   (a running server, 64 clients, 300 s)

Prints one JSON object: requests, errors, latencies in seconds, tokens per second. Fails if there was an error, or if the
longest latency is more than four times the median: the work of all requests is equal.
"""

import json
import statistics
import sys
import threading
import time
import urllib.request

MOST_RATIO = 4.0
TOKENS = 16


def ask(url, text):
    body = {"prompt": text, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def client(number, url, until, latencies, errors):
    turn = 0
    while time.monotonic() < until:
        turn += 1
        # Equal in length, and no two the same.
        text = " ".join(f"{number * 1000003 + turn * 7919 + word:08d}" for word in range(12))
        began = time.monotonic()
        try:
            reply = ask(url, text)
            if reply["tokens_predicted"] != TOKENS:
                errors.append(f"{reply['tokens_predicted']} tokens, expected {TOKENS}")
            latencies.append(time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is counted and printed
            errors.append(repr(error))


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    clients = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 300.0
    latencies, errors, began = [], [], time.monotonic()
    threads = [
        threading.Thread(target=client, args=(number, url, began + seconds, latencies, errors))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    median, longest = statistics.median(latencies), max(latencies)
    print(
        json.dumps(
            {
                "clients": clients,
                "requests": len(latencies),
                "errors": len(errors),
                "median_s": round(median, 3),
                "longest_s": round(longest, 3),
                "ratio": round(longest / median, 2),
                "tokens_per_second": round(len(latencies) * TOKENS / took, 1),
            }
        )
    )
    for error in errors[:5]:
        print(error, file=sys.stderr)
    sys.exit(1 if errors or longest > MOST_RATIO * median else 0)


main()
