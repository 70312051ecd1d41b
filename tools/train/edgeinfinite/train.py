"""Trains the gates of EdgeInfinite for a model whose own weights stay as they are, and measures what they bring.

Stage 1 makes every layer, by itself, find with sinks, window and memory what it finds with full attention, on queries,
keys and values recorded from the model. Stage 2 runs the model with its memory and lowers the loss of text, and of
answers to questions, that lie beyond the first segment. See README.md.
"""

import argparse
import json
import math
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import evaluate
from data import Tokens, documents, windows
from llama import Llama
from memory import Gates, Layer, Schedule, Settings, full_hidden_states, hidden_states


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder of a Llama")
    parser.add_argument("--text", nargs="+", required=True, help="files to train on, documents apart by <|endoftext|>")
    parser.add_argument("--out", required=True, help="folder of the adapter and of the report")
    parser.add_argument("--sink", type=int, default=16)
    parser.add_argument("--window", type=int, default=240)
    parser.add_argument("--segment", type=int, default=256)
    parser.add_argument("--pos-mode", choices=["cache", "abs"], default="cache")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a sequence")
    parser.add_argument("--record", type=int, default=32, help="sequences recorded for stage 1")
    parser.add_argument("--distill-seconds", type=float, default=0, help="0 leaves stage 1 out")
    parser.add_argument("--tune-seconds", type=float, default=120, help="0 leaves stage 2 out")
    parser.add_argument("--batch", type=int, default=24, help="sequences of a step of stage 2")
    parser.add_argument("--recall-sequences", type=int, default=1024)
    parser.add_argument("--answer-weight", type=float, default=0.0)
    parser.add_argument("--distill-rate", type=float, default=5e-3)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--start", help="folder of an adapter to begin stage 2 with, in place of stage 1")
    parser.add_argument("--max-steps", type=int, help="end each stage after so many steps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    evaluate.add_arguments(parser)
    return parser.parse_args()


class Pace:
    """A learning rate that rises for a few steps and falls along a cosine until the time is over."""

    def __init__(self, optimizer, rate, seconds, steps):
        self.optimizer, self.rate, self.seconds, self.steps = optimizer, rate, seconds, steps
        self.begin, self.step = time.time(), 0

    def go_on(self):
        done = (time.time() - self.begin) / self.seconds if self.seconds > 0 else 1
        if self.steps:
            done = max(done, self.step / self.steps)
        if done >= 1:
            return False
        self.step += 1
        rate = self.rate * min(1, self.step / 20) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return True


def optimizer_of(gates, decay):
    """The gating vectors never decay: that would pull every head to a share of one half."""
    others, vectors = gates.parameters_by_decay()
    groups = [{"params": others, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def shares(gates):
    """Mean share of the memory per layer and head."""
    return [[round(float(head), 4) for head in layer] for layer in torch.sigmoid(gates.gate.detach()).mean(-1)]


@torch.no_grad()
def record(model, settings, tokens):
    """Per layer what heads find in memory, nearby and in everything, rows with a memory: `[rows, heads, d]` each."""
    schedule = Schedule(settings, tokens.shape[1], recompute=False).to(model.device)
    rows = schedule.token_rows[settings.first_with_memory :]
    out = [([], [], []) for _ in range(model.layers)]

    def hear(layer, q, k, v, mixed):
        parts = Layer(model, schedule, *(x[:, schedule.row_tokens] for x in (q, k, v)))
        stage_rows = rows - schedule.prefix
        found, dot = (x.flatten(1, 2)[:, stage_rows] for x in (parts.read(), parts.local()))
        for kept, part in zip(out[layer], (found, dot, mixed[:, settings.first_with_memory :])):
            kept.append(part.flatten(0, 1).to(model.dtype))

    for sequence in tokens.split(4):
        full_hidden_states(model, sequence, hear)
    return [[torch.cat(part) for part in layer] for layer in out]


def distill(gates, recorded, options, log):
    """Stage 1. Every layer's error is in units of what it is without a memory."""
    device, count = recorded[0][0].device, len(recorded[0][0])
    base = [float((full.float() - dot.float()).square().mean()) for _, dot, full in recorded]
    optimizer = optimizer_of(gates, 0.0)
    pace, batch = Pace(optimizer, options.distill_rate, options.distill_seconds, options.max_steps), min(count, 8192)
    while pace.go_on():
        rows = torch.randint(0, count, (batch,), device=device)
        total = 0
        for layer, parts in enumerate(recorded):
            found, dot, full = (part[rows].float() for part in parts)
            total = total + (gates.mix(layer, found, dot) - full).square().mean() / base[layer]
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        if pace.step % 100 == 1:
            log(f"distil {pace.step}: error {float(total.detach()) / len(recorded):.4f} of that without a memory")
    with torch.no_grad():
        errors = []
        for layer, parts in enumerate(recorded):
            found, dot, full = (part[:65536].float() for part in parts)
            errors.append(float((gates.mix(layer, found, dot) - full).square().mean()) / base[layer])
    return {"steps": pace.step, "error_by_layer": [round(error, 4) for error in errors], "share": shares(gates)}


def losses_of(model, schedule, x, tokens, first):
    """Loss of every token after the `first`, in one row."""
    logits = model.logits(x[:, schedule.token_rows[first:]])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, first + 1 :].flatten(), reduction="none")


def tune(model, gates, settings, text, recall, options, log):
    """Stage 2. Of three steps, two read in place and one recomputes, as prompts are read. The gain in the history is
    how much lower the loss of the same tokens is than without a memory."""
    optimizer = optimizer_of(gates, 0.01)
    pace = Pace(optimizer, options.rate, options.tune_seconds, options.max_steps)
    schedules = [Schedule(settings, options.length, recompute).to(model.device) for recompute in (False, True)]
    first, chance = settings.first_with_memory, torch.Generator().manual_seed(options.seed)
    history, sums = [], {"text": [], "answers": [], "gain": []}
    while pace.go_on():
        schedule = schedules[pace.step % 3 == 0]
        count = max(2, options.batch // 2 if schedule.recompute else options.batch)
        asked = max(1, count // 3)
        picked = torch.randint(0, len(recall[0]), (asked,), generator=chance)
        tokens = torch.cat([windows(text, count - asked, options.length, chance), recall[0][picked]]).to(model.device)
        answer = torch.cat([torch.zeros(count - asked, options.length + 1, dtype=torch.bool), recall[1][picked]])
        x = hidden_states(model, schedule, tokens[:, :-1], "gated", gates)
        losses = losses_of(model, schedule, x, tokens, first)
        answer = answer[:, first + 1 :].flatten().to(model.device)
        of_text, of_answers = losses.mean(), (losses * answer).sum() / answer.sum().clamp(min=1)
        optimizer.zero_grad(set_to_none=True)
        (of_text + options.answer_weight * of_answers).backward()
        torch.nn.utils.clip_grad_norm_(gates.parameters(), 1.0)
        optimizer.step()
        sums["text"].append(of_text.detach())
        sums["answers"].append(of_answers.detach())
        if pace.step % 5 == 1:
            with torch.no_grad():
                plain = losses_of(model, schedule, hidden_states(model, schedule, tokens[:, :-1]), tokens, first)
            sums["gain"].append((plain - losses.detach()).mean())
        if pace.step % 25 == 1:
            means = {name: round(float(torch.stack(values).mean()), 4) for name, values in sums.items()}
            sums = {name: [] for name in sums}
            by_layer = [round(float(share), 4) for share in torch.sigmoid(gates.gate.detach()).mean((1, 2))]
            history.append({"step": pace.step, **means, "share": by_layer})
            log(f"tune {pace.step}: {means}, share by layer {by_layer}, {time.time() - pace.begin:.0f} s")
    return {"steps": pace.step, "history": history, "share": shares(gates)}


@torch.no_grad()
def validate(model, gates, settings, text, options):
    """Loss of text that was not trained on, with the gates and without a memory, beyond the first segment."""
    schedule, first = Schedule(settings, options.length, False).to(model.device), settings.first_with_memory
    lost = {"none": [], "gated": []}
    for tokens in windows(text, 16, options.length, torch.Generator().manual_seed(0)).split(4):
        tokens = tokens.to(model.device)
        for memory, found in lost.items():
            x = hidden_states(model, schedule, tokens[:, :-1], memory, gates)
            found.append(losses_of(model, schedule, x, tokens, first).mean())
    plain, gated = (float(torch.stack(lost[memory]).mean()) for memory in ("none", "gated"))
    return {"loss_without_memory": round(plain, 4), "loss": round(gated, 4), "gain": round(plain - gated, 4)}


def main():
    options = arguments()
    begin = time.time()

    def log(text):
        print(f"{time.time() - begin:6.1f} s  {text}", flush=True)

    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    on_gpu = options.device != "cpu"
    settings = Settings(options.sink, options.window, options.segment, options.pos_mode)
    model = Llama(options.model, options.device, torch.bfloat16 if on_gpu else torch.float32)
    tokenizer = Tokens(options.model)
    parts = [part for path in options.text for part in documents(path)]
    random.Random(options.seed).shuffle(parts)
    text = np.concatenate([tokenizer.of_long(part) for part in parts])
    held = min(len(text) // 20, 400_000)
    text, validation = text[:-held], text[-held:]
    log(f"{len(text)} tokens of text, {held} more for validation")
    made = [tokenizer.recall(seed, text, options.length) for seed in range(options.recall_sequences)]
    recall = [torch.from_numpy(np.stack(parts)) for parts in zip(*made)]
    recall[0] = recall[0].long()
    log(f"{len(made)} sequences with questions")
    gates = Gates(model.layers, model.heads, model.head_dim).to(options.device)
    own, weights = (sum(x.numel() for x in part) for part in (gates.parameters(), model.w.values()))
    places = ("model", "text", "out", "eval_text", "recall", "start")
    report = {"options": {name: value for name, value in vars(options).items() if name not in places}}
    report |= {"parameters": own, "parameters_of_model": weights, "training_tokens": len(text)}
    if options.start:
        gates, settings = Gates.load(options.start, model)
    elif options.distill_seconds > 0:
        chance = torch.Generator().manual_seed(options.seed)
        asked = max(1, options.record // 4)
        plain = windows(text, options.record - asked, options.length, chance)
        recorded = record(model, settings, torch.cat([plain, recall[0][:asked]])[:, :-1].to(options.device))
        log(f"recorded {len(recorded[0][0])} rows of {model.layers} layers")
        report["distill"] = distill(gates, recorded, options, log)
        del recorded
        gates.save(pathlib.Path(options.out) / "distilled", settings, model)
    if options.tune_seconds > 0:
        report["tune"] = tune(model, gates, settings, text, recall, options, log)
    report["validation"] = validate(model, gates, settings, validation, options)
    log(f"validation: {report['validation']}")
    gates.save(options.out, settings, model)
    report["seconds"] = round(time.time() - begin, 1)
    report["device"] = torch.cuda.get_device_name() if on_gpu else "cpu"
    (pathlib.Path(options.out) / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    log("trained")
    if options.eval_text or options.recall:
        evaluate.run(options, options.out, log)


if __name__ == "__main__":
    main()
