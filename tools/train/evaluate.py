"""Measures a model: recall over distances, sums, corrections, what it was never told, stories' perplexity, drafts.

    python evaluate.py --data DIR --checkpoint DIR [--device cuda]"""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F

from packing import END, START, Packer, render, texts

BLOCK = 64


class Greedy:
    """Answers prompts with the likeliest tokens, all of them at once and without a cache."""

    def __init__(self, model, tokenizer_file, device):
        self.model, self.device = model, device
        self.packer = Packer(tokenizer_file, None, 0)
        self.end = self.packer.tokenizer.token_to_id(END)

    @torch.no_grad()
    def answers(self, conversations, most):
        """Texts and tokens (prompt, answer) for conversations that end with a user's message."""
        prompts = [self.packer.ids(render(messages) + f"{START}assistant\n") for messages in conversations]
        length = (max(map(len, prompts)) + most + BLOCK - 1) // BLOCK * BLOCK
        ids = torch.zeros(len(prompts), length, dtype=torch.long)
        for row, prompt in zip(ids, prompts):
            row[: len(prompt)] = torch.tensor(prompt)
        ids, at = ids.to(self.device), torch.tensor([len(p) for p in prompts], device=self.device)
        rows, alive = torch.arange(len(prompts), device=self.device), torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        for _ in range(most):
            used = (int(at.max()) + BLOCK - 1) // BLOCK * BLOCK
            hidden = self.model.hidden(ids[:, :used])[rows, at - 1]
            token = self.model.logits(hidden).argmax(-1)
            alive &= token != self.end
            if not alive.any():
                break
            ids[rows[alive], at[alive]] = token[alive]
            at[alive] += 1
        out = []
        for row, prompt, stop in zip(ids.cpu(), prompts, at.tolist()):
            answer = row[len(prompt) : stop].tolist()
            out.append((self.packer.tokenizer.decode(answer), prompt, answer))
        return out


@torch.no_grad()
def perplexity(model, packer, documents, device, tokens=1024, most=400):
    """Nats a token and bits a byte of documents, in windows from the beginning of each."""
    nats = count = size = 0
    batch = []

    def flush():
        nonlocal nats, count, batch
        if not batch:
            return
        ids = torch.zeros(len(batch), tokens, dtype=torch.long)
        for row, document in zip(ids, batch):
            row[: len(document)] = torch.tensor(document)
        ids = ids.to(device)
        losses = F.cross_entropy(model.logits(model.hidden(ids))[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(batch), -1)
        for row, document in zip(losses, batch):
            nats += row[: len(document) - 1].sum().item()
            count += len(document) - 1
        batch = []

    for document in documents[:most]:
        ids = [packer.eot] + packer.ids(document)[: tokens - 1]
        size += len(packer.tokenizer.decode(ids[1:]).encode())
        batch.append(ids)
        if len(batch) == 16:
            flush()
    flush()
    return dict(nats_per_token=round(nats / count, 4), perplexity=round(math.exp(nats / count), 2), bits_per_byte=round(nats / math.log(2) / size, 4), tokens=count)


@torch.no_grad()
def drafts(model, answered, device):
    """Share of the tokens of greedy answers that the head for one token further foresaw."""
    right = total = 0
    for _, prompt, answer in answered:
        ids = prompt + answer
        length = (len(ids) + BLOCK - 1) // BLOCK * BLOCK
        row = torch.zeros(1, length, dtype=torch.long)
        row[0, : len(ids)] = torch.tensor(ids)
        row = row.to(device)
        hidden = model.hidden(row)
        after = torch.cat([row[:, 1:], row[:, -1:]], 1)
        guess = model.logits(model.further(hidden, after)).argmax(-1)[0].tolist()
        # The head sees the hidden state at t and the token at t + 1 and guesses that at t + 2.
        for t in range(len(prompt) - 1, len(ids) - 2):
            right += guess[t] == ids[t + 2]
            total += 1
    return round(right / max(1, total), 4)


def evaluate(model, data, device, deadline, tiny=False):
    """All figures as a dictionary, as far as the time allows; prints them and samples."""
    import talk

    greedy, report = Greedy(model, f"{data}/tokenizer.json", device), {}

    def say(name, value):
        report[name] = value
        print(f"{name}: {json.dumps(value) if not isinstance(value, str) else value}", flush=True)

    say("stories", perplexity(model, greedy.packer, texts(data, "valid"), device, most=8 if tiny else 400))
    talk.EXAM_TEXTS = texts(data, "valid")
    for name, cases in talk.examination(greedy.packer, 4 if tiny else 64):
        right, wrong = 0, []
        for part in range(0, len(cases), 64):
            if time.time() > deadline:
                return report
            some = cases[part : part + 64]
            for (messages, wanted, unwanted), (text, _, _) in zip(some, greedy.answers([m for m, _, _ in some], 40)):
                good = all(w in text for w in wanted) and not any(u in text for u in unwanted)
                right += good
                if not good and len(wrong) < 4:
                    wrong.append((messages[-1][1], text, wanted))
        say(name, round(right / len(cases), 4))
        for question, text, wanted in wrong:
            print(f"    {question!r}: {text!r}, expected {wanted}", flush=True)
    samples = []
    for messages in talk.samples():
        if time.time() > deadline:
            return report
        told = []
        for text in messages:
            told.append(("user", text))
            found = greedy.answers([told], 8 if tiny else 160)[0]
            told.append(("assistant", found[0]))
            samples.append(found)
        print(render(told).replace(START, "").replace(END, ""), flush=True)
    say("drafts", drafts(model, samples, device))
    return report


def main():
    from safetensors.torch import load_file

    from model import Model

    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--seconds", type=float, default=600)
    a = p.parse_args()
    if a.device == "cuda":
        from delta import delta as rule
    else:
        from delta import naive as rule
    config = json.load(open(f"{a.checkpoint}/config.json"))
    model = Model(config, rule, torch.bfloat16 if a.device == "cuda" else torch.float32).to(a.device)
    model.load_state_dict({n: v.float() for n, v in load_file(f"{a.checkpoint}/model.safetensors", device=a.device).items()})
    evaluate(model.eval(), a.data, a.device, time.time() + a.seconds)


if __name__ == "__main__":
    main()
