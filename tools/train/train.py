"""Trains the model for so many seconds and writes a checkpoint.

    python train.py --data DIR --out DIR --seconds 540 [--resume FILE]

DIR holds tokenizer.json, stories and books (see prepare.py). Conversations are generated while training runs, by one
process for each core that is left. The schedule follows the clock: warm up, stay, decay to nothing in the last part.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import time

START = time.time()


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=540, help="of the whole program, evaluation and all")
    p.add_argument("--reserve", type=float, default=45, help="seconds of these for evaluation and export")
    p.add_argument("--resume", help="weights to go on from (safetensors)")
    p.add_argument("--phases", default="2048x64:0.68,4096x32:0.32", help="tokens of a sequence x sequences of a step : share of the time, one after the other")
    p.add_argument("--rate", type=float, default=0.02, help="learning rate of matrices")
    p.add_argument("--decay", type=float, default=0.35, help="share of the time in which the rate falls")
    p.add_argument("--seed", type=int, default=1, help="of the generated conversations")
    p.add_argument("--makers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that generate, at least one for each phase")
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true", help="a model of toy size, to try the program out on a CPU")
    p.add_argument("--profile", action="store_true", help="say what a step spends its time on")
    a = p.parse_args()
    sizes = lambda text: [int(part) for part in text.split("x")]
    a.phases = [(*sizes(size), float(share)) for size, share in (phase.split(":") for phase in a.phases.split(","))]
    return a


TOKENS_PER_FILE = 2**18
# Files that wait to be read; who makes more than that has a rest.
WAITING = 100


def make_rows(a, folder, index):
    """A process that writes rows of generated conversations for one of the phases until it is stopped."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import numpy as np
    from packing import Packer

    os.nice(5)
    packer = Packer(f"{a.data}/tokenizer.json", a.data, seed=a.seed * 1000 + index)
    phase = index % len(a.phases)
    tokens = a.phases[phase][0]
    rows = TOKENS_PER_FILE // tokens if not a.tiny else 8
    for part in range(10**6):
        while len(os.listdir(f"{folder}/{phase}")) > WAITING:
            time.sleep(0.5)
        block = np.stack([packer.row(tokens + 1) for _ in range(rows if part else rows // 4)])
        name = f"{folder}/{phase}/{part:05}-{index:03}"
        np.save(name + ".tmp.npy", block)
        os.rename(name + ".tmp.npy", name + ".npy")


def read_texts(a, folder, name):
    """A process that turns a file of texts into tokens."""
    import numpy as np
    from packing import Packer, texts

    packer = Packer(f"{a.data}/tokenizer.json", None, seed=0)
    documents = texts(a.data, name)
    if a.tiny:
        documents = documents[:200]
    pieces = [packer.text_ids(document) for document in documents]
    np.save(f"{folder}/{name}.tmp.npy", np.concatenate(pieces))
    os.rename(f"{folder}/{name}.tmp.npy", f"{folder}/{name}.npy")


class Muon:
    """Momentum made orthogonal, for the matrices of layers; equal shapes together."""

    def __init__(self, parameters, momentum=0.95, decay=0.1):
        import torch

        self.momentum, self.decay, self.groups = momentum, decay, {}
        for p in parameters:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.buffers = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.groups.items()}

    def step(self, rate):
        import torch

        with torch.no_grad():
            self._step(torch, rate)

    def _step(self, torch, rate):
        for shape, parameters in self.groups.items():
            grads = torch.stack([p.grad for p in parameters])
            buffer = self.buffers[shape]
            buffer.lerp_(grads, 1 - self.momentum)
            update = orthogonal(grads.lerp(buffer, self.momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            torch._foreach_mul_(parameters, 1 - rate * self.decay)
            torch._foreach_add_(parameters, list(update.float().unbind(0)), alpha=-rate * scale)


def orthogonal(x, steps=5):
    """The nearest orthogonal matrices, roughly, by a Newton-Schulz iteration of the fifth order."""
    tall = x.shape[1] > x.shape[2]
    x = (x.transpose(1, 2) if tall else x).bfloat16()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True).to(x.dtype) * 1.01 + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Pool:
    """Rows that were generated, on the device; new ones are taken first."""

    def __init__(self, folder, tokens, capacity, device):
        import torch

        self.folder, self.device, self.filled, self.fresh = folder, device, 0, 0
        self.rows = torch.zeros(capacity, tokens + 1, dtype=torch.int16, device=device)

    def fetch(self):
        """Takes in some of the files that are there."""
        import numpy as np
        import torch

        names = sorted(name for name in os.listdir(self.folder) if ".tmp" not in name)[:12]
        if not names or self.filled == len(self.rows):
            return
        block = np.concatenate([np.load(f"{self.folder}/{name}") for name in names])[: len(self.rows) - self.filled]
        self.rows[self.filled : self.filled + len(block)] = torch.from_numpy(block.view(np.int16)).to(self.device)
        self.filled += len(block)
        for name in names:
            os.remove(f"{self.folder}/{name}")

    def take(self, count):
        import torch

        new = min(count, self.filled - self.fresh)
        rows = self.rows[self.fresh : self.fresh + new]
        self.fresh += new
        if new < count:
            rows = torch.cat([rows, self.rows[torch.randint(0, self.filled, (count - new,), device=self.device)]])
        return rows


def main():
    a = arguments()
    # Shared memory where there is some; a folder of its own for every run.
    folder = f"{'/dev/shm' if os.path.isdir('/dev/shm') else a.out}/rows-{os.getpid()}"
    os.makedirs(a.out, exist_ok=True)
    for phase in range(len(a.phases)):
        os.makedirs(f"{folder}/{phase}")
    fork = multiprocessing.get_context("fork")
    makers = [fork.Process(target=read_texts, args=(a, folder, name), daemon=True) for name in ("stories", "books")]
    makers += [fork.Process(target=make_rows, args=(a, folder, index), daemon=True) for index in range(max(a.makers, len(a.phases)))]
    for maker in makers:
        maker.start()
    try:
        train(a, folder)
    finally:
        for maker in makers:
            maker.terminate()
        shutil.rmtree(folder, ignore_errors=True)


def train(a, folder):
    import torch

    import evaluate
    from model import CONFIG, TEMPLATE, Model, export

    say = lambda *what: print(f"{time.time() - START:6.1f}", *what, flush=True)
    device = a.device
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    if device == "cuda":
        from delta import delta as rule
    else:
        from delta import naive as rule
    config = dict(CONFIG)
    if a.tiny:
        config.update(num_hidden_layers=4, layer_types=CONFIG["layer_types"][:4], intermediate_size=128)
    model = Model(config, rule, torch.bfloat16 if device == "cuda" else torch.float32).to(device)
    if a.resume:
        from safetensors.torch import load_file
        model.load_state_dict({name: value.float() for name, value in load_file(a.resume, device=device).items()})
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n and min(p.shape) >= 64]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    say(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {sum(p.numel() for p in matrices) / 1e6:.2f} M of them in matrices of layers")
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=device == "cuda")
    parts = [*model.model.layers, *model.mtp.layers]
    if device == "cuda":
        # Layer by layer, so that equal ones are compiled once.
        for part in parts:
            part.compile(dynamic=False)
        model.entropy = torch.compile(model.entropy, dynamic=False)
        for tokens, batch, _ in a.phases:
            ids = torch.randint(0, 5000, (batch, tokens + 1), device=device)
            sum(model.loss(ids, torch.ones_like(ids, dtype=torch.float32))).backward()
        del ids
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        say("compiled")
    pools = [Pool(f"{folder}/{i}", tokens, int((0.8e9 if device == "cuda" else 1e6) / tokens), device) for i, (tokens, _, _) in enumerate(a.phases)]
    while pools[0].filled < a.phases[0][1] or not all(os.path.exists(f"{folder}/{name}.npy") for name in ("stories", "books")):
        time.sleep(0.5)
        pools[0].fetch()
    import numpy as np
    stories, books = (torch.from_numpy(np.load(f"{folder}/{name}.npy").astype(np.int16)).to(device) for name in ("stories", "books"))
    say(f"{len(stories) / 1e6:.2f} M tokens of stories, {len(books) / 1e6:.2f} M of books; {pools[0].filled} rows")

    def window(text, count, tokens):
        return text[torch.randint(0, len(text) - tokens - 1, (count, 1), device=device) + torch.arange(tokens + 1, device=device)]

    first, deadline = time.time(), START + a.seconds - a.reserve
    step, phase, stable, seen, history, kept, rate = 0, 0, None, 0, [], None, a.rate
    while True:
        done = (time.time() - first) / (deadline - first)
        if done >= 1:
            break
        if phase + 1 < len(a.phases) and done >= sum(share for _, _, share in a.phases[: phase + 1]):
            phase += 1
            pools[phase].fetch()
            say(f"phase {phase + 1}, {pools[phase].filled} rows")
        if stable is None and done >= 1 - a.decay:
            stable = {name: p.detach().to(torch.bfloat16).cpu() for name, p in model.named_parameters()}
        factor = min(1, (step + 1) / 100) * min(1, (1 - done) / a.decay)
        tokens, batch, _ = a.phases[phase]
        pool, texts = pools[phase], batch // 10 or 1
        rows = torch.cat([pool.take(batch - 2 * texts), window(stories, texts, tokens), window(books, texts, tokens)]).int()
        ids, weights = (rows & 0x7FFF).long(), torch.where(rows < 0, 0.1, 1.0)
        one, two = model.loss(ids, weights)
        (one + 0.15 * two).backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for group in adam.param_groups:
            group["lr"] = 0.15 * rate * factor
        muon.step(rate * factor)
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        seen += batch * tokens
        if step % 10 == 0:
            pool.fetch()
        if step in (10, 30) or step % 100 == 0 or (a.tiny and step % 5 == 0):
            now = time.time()
            history.append(dict(step=step, seconds=round(now - first, 1), tokens=seen, loss=round(one.item(), 4), further=round(two.item(), 4)))
            say(f"step {step} loss {one.item():.3f} further {two.item():.3f} rate {factor:.2f}, {seen / (now - first) / 1e6:.3f} M tokens/s, rows {pool.filled} taken {pool.fresh}")
            if step % 100 == 0:
                # Back to where it was well, and more slowly, should the loss run away.
                if kept and not one.item() < kept[0] + 1.5:
                    rate /= 2
                    say(f"back to the weights of 100 steps ago, rate {rate}")
                    with torch.no_grad():
                        for p, value in zip(model.parameters(), kept[1]):
                            p.copy_(value)
                    for buffer in muon.buffers.values():
                        buffer.zero_()
                    adam.state.clear()
                else:
                    kept = (one.item(), [p.detach().clone() for p in model.parameters()])
        if a.profile and step == 40:
            profile(model, muon, adam, ids, weights)
    generated = sum(pool.fresh * tokens for pool, (tokens, _, _) in zip(pools, a.phases))
    say(f"trained on {seen / 1e6:.0f} M tokens in {step} steps; {generated / 1e6:.0f} M of them generated")
    if device == "cuda":
        say(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of GPU memory")
        for part in parts:
            part._compiled_call_impl = None
    model.eval()
    export(model, a.out + "/checkpoint", f"{a.data}/tokenizer.json", TEMPLATE)
    report = dict(steps=step, tokens=seen, generated_tokens=generated, phases=a.phases, seconds=round(time.time() - first), history=history)
    if stable is not None:
        from safetensors.torch import save_file
        save_file(stable, a.out + "/stable.safetensors")

    def write():
        with open(a.out + "/train_report.json", "w") as f:
            json.dump(report, f, indent=1)

    write()
    report["evaluation"] = evaluate.evaluate(model, a.data, device, START + a.seconds - 3, tiny=a.tiny)
    write()
    say("done")


def profile(model, muon, adam, ids, weights):
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as found:
        for _ in range(3):
            one, two = model.loss(ids, weights)
            (one + 0.15 * two).backward()
            muon.step(0.0)
            adam.step()
            model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=60), flush=True)


if __name__ == "__main__":
    main()
