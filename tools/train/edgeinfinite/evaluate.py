"""Measures an adapter: perplexity of long texts by position, and how often facts of long prompts are recalled.

Compared are full attention, the same cache without a memory, the trained gates, the moments of SLAKE in their place,
and the trained gates without sinks, without a window, and with a memory that holds nothing.
"""

import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F

from data import Tokens, documents
from llama import Llama
from memory import Gates, Schedule, Settings, full_hidden_states, hidden_states

EDGES = [0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]


def add_arguments(parser):
    parser.add_argument("--eval-text", nargs="*", default=[], metavar="NAME=FILE", help="texts to measure")
    parser.add_argument("--eval-tokens", type=int, default=65536, help="tokens of each")
    parser.add_argument("--eval-count", type=int, default=4, help="pieces of so many tokens, at most, of each file")
    parser.add_argument("--recall", help="a file of lines with tokens, prompt and answer")
    parser.add_argument("--recall-limit", type=int, default=1 << 30, help="prompts of each length, at most")


def variants(settings, gates, distilled):
    """Name, settings, gates, kind of memory, and whether stages are recomputed; `None` for full attention."""
    no_sink = Settings(0, settings.window, settings.segment, settings.pos_mode, settings.rope_in_memory)
    no_window = Settings(settings.sink, 1, settings.segment, settings.pos_mode, settings.rope_in_memory)
    neither = Settings(0, 1, settings.segment, settings.pos_mode, settings.rope_in_memory)
    out = [
        ("full attention", None),
        ("window without a memory", (settings, None, "none", False)),
        ("moments (ptaa)", (settings, None, "moments", False)),
        ("trained gates", (settings, gates, "gated", False)),
        ("trained gates, recomputed", (settings, gates, "gated", True)),
        ("trained gates, empty memory", (settings, gates, "empty", False)),
        ("trained gates, no sinks", (no_sink, gates, "gated", False)),
        ("trained gates, no window", (no_window, gates, "gated", False)),
        ("trained gates, neither", (neither, gates, "gated", False)),
    ]
    if distilled:
        out.insert(4, ("distilled gates", (settings, distilled, "gated", False)))
    return out


def rows_of(model, variant, tokens, wanted, recompute=None):
    """Hidden states `[batch, len(wanted), width]` of the wanted tokens."""
    if variant is None:
        return full_hidden_states(model, tokens)[:, wanted]
    settings, gates, memory, recomputed = variant
    schedule = Schedule(settings, tokens.shape[1], recomputed if recompute is None else recompute).to(model.device)
    return hidden_states(model, schedule, tokens, memory, gates)[:, schedule.token_rows[wanted]]


def losses(model, variant, tokens):
    """Loss of each token of `[1, tokens + 1]` after the first."""
    wanted = torch.arange(tokens.shape[1] - 1, device=model.device)
    x = rows_of(model, variant, tokens[:, :-1], wanted)[0]
    pairs = zip(x.split(8192), tokens[0, 1:].split(8192))
    parts = [F.cross_entropy(model.logits(part).float(), expected, reduction="none") for part, expected in pairs]
    return torch.cat(parts).double()


def perplexities(model, variant, pieces):
    """Perplexity by position, over all pieces."""
    lost = torch.stack([losses(model, variant, piece) for piece in pieces])
    out = {}
    for low, high in zip(EDGES, EDGES[1:]):
        if low < lost.shape[1]:
            out[f"{low}-{min(high, lost.shape[1])}"] = math.exp(float(lost[:, low:high].mean()))
    return out


def recall(model, variant, prompts):
    """Share of answers that are all predicted, by length; prompts are read as prompts are, stage by stage."""
    right, count = {}, {}
    for length, prompt, answer in prompts:
        tokens = torch.cat([prompt, answer])[None, :-1]
        wanted = torch.arange(len(prompt) - 1, tokens.shape[1], device=model.device)
        guess = model.logits(rows_of(model, variant, tokens, wanted, recompute=True)).argmax(-1)[0]
        right[length] = right.get(length, 0) + int(torch.equal(guess, answer))
        count[length] = count.get(length, 0) + 1
    return {str(length): right[length] / count[length] for length in sorted(count)}


def load(options, model, tokenizer):
    """Pieces of text `{name: [[1, tokens + 1]]}` and prompts `[(length, prompt, answer)]`."""
    texts, prompts, seen = {}, [], {}
    for named in options.eval_text:
        name, _, path = named.partition("=")
        size = options.eval_tokens + 1
        streams, short = [], []
        for text in documents(path):
            tokens = torch.from_numpy(tokenizer.of_long(text).astype("int64"))
            (streams if len(tokens) >= size else short).append(tokens)
        if short:
            streams.append(torch.cat(short))
        pieces = [part[None].to(model.device) for tokens in streams for part in tokens.split(size) if len(part) == size]
        if not pieces:
            raise SystemExit(f"{path}: expected {size} tokens")
        texts[name] = pieces[: options.eval_count]
    for line in pathlib.Path(options.recall).read_text().splitlines() if options.recall else []:
        asked = json.loads(line)
        seen[asked["tokens"]] = seen.get(asked["tokens"], 0) + 1
        if seen[asked["tokens"]] <= options.recall_limit:
            parts = [torch.from_numpy(tokenizer.of(asked[part]).astype("int64")) for part in ("prompt", "answer")]
            prompts.append((asked["tokens"], *[part.to(model.device) for part in parts]))
    return texts, prompts


def table(title, rows):
    """A table in Markdown: the first column names the variant."""
    heads = list(next(iter(rows.values())))
    lines = [f"| {title} | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for name, cells in rows.items():
        lines.append(f"| {name} | " + " | ".join(f"{cells[head]:.2f}" for head in heads) + " |")
    return "\n".join(lines) + "\n"


def tables(results):
    parts = [table(f"perplexity of {text}, by position", rows) for text, rows in results["perplexity"].items()]
    if results["recall"]:
        parts.append(table("facts recalled, by length of the prompt", results["recall"]))
    return "\n".join(parts)


@torch.no_grad()
def run(options, folder, log):
    """Measures the adapter in `folder`, and writes `results.json` and `results.md` there."""
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = pathlib.Path(folder)
    model = Llama(options.model, options.device, torch.float32)
    gates, settings = Gates.load(folder, model)
    distilled = Gates.load(folder / "distilled", model)[0] if (folder / "distilled").is_dir() else None
    texts, prompts = load(options, model, Tokens(options.model))
    counts = ", ".join(f"{len(pieces)} of {name}" for name, pieces in texts.items())
    log(f"measuring pieces of {options.eval_tokens} tokens: {counts}; {len(prompts)} prompts")
    results = {"settings": vars(settings), "perplexity": {name: {} for name in texts}, "recall": {}}
    results |= {"eval_tokens": options.eval_tokens, "pieces": {name: len(pieces) for name, pieces in texts.items()}}
    for name, variant in variants(settings, gates, distilled):
        begin = time.time()
        for text, pieces in texts.items():
            results["perplexity"][text][name] = perplexities(model, variant, pieces)
        if prompts and not (variant and variant[3]):
            results["recall"][name] = recall(model, variant, prompts)
        log(f"{name}: {time.time() - begin:.1f} s, recall {results['recall'].get(name)}")
        # After every variant, so that what was measured is there if the rest is cut off.
        (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (folder / "results.md").write_text(tables(results))
    print(tables(results), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder of a Llama")
    parser.add_argument("--adapter", required=True, help="folder of the adapter, which the results go to")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add_arguments(parser)
    options = parser.parse_args()
    begin = time.time()
    run(options, options.adapter, lambda text: print(f"{time.time() - begin:6.1f} s  {text}", flush=True))


if __name__ == "__main__":
    main()
