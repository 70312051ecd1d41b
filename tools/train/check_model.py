"""Compares model.py with the transformers library, and a converted file in kvas with model.py.

    python check_model.py                                  random weights against transformers
    python check_model.py CHECKPOINT KVAS MODEL.gguf       logits of a checkpoint against `kvas logits` of its file
"""

import json
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

from delta import naive
from model import CONFIG, Model


def against_transformers():
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(1)
    model = Model(rule=naive, dtype=torch.float32)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.data += torch.randn_like(p) * 0.1
    known = {key: value for key, value in CONFIG.items() if key not in ("architectures", "dtype")}
    other = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**known)).float().eval()
    missing = other.load_state_dict(model.state_dict(), strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and all(key.startswith("mtp.") for key in missing.unexpected_keys), missing
    other.tie_weights()
    ids = torch.randint(0, CONFIG["vocab_size"], (2, 70))
    with torch.no_grad():
        ours, theirs = model.logits(model.hidden(ids)), other(ids).logits
    error = ((ours - theirs).norm() / theirs.norm()).item()
    print(f"relative error against transformers: {error:.1e}")
    assert error < 1e-4


def against_kvas(checkpoint, kvas, file):
    model = Model(json.load(open(f"{checkpoint}/config.json")), naive, torch.float32)
    model.load_state_dict({name: value.float() for name, value in load_file(f"{checkpoint}/model.safetensors").items()})
    torch.manual_seed(2)
    ids = torch.randint(0, model.config["vocab_size"] - 3, (1, 200))
    with torch.no_grad():
        ours = model.logits(model.hidden(ids))[0]
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/logits.safetensors"
        subprocess.run([kvas, "logits", "-m", file, "--device", "cpu", "--ids", ",".join(map(str, ids[0].tolist())), "-o", out], check=True)
        theirs = load_file(out)["logits"]
    error = ((ours - theirs).norm() / ours.norm()).item()
    same = (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    print(f"relative error of kvas: {error:.1e}, the same likeliest token at {same:.1%} of positions")
    return error


if __name__ == "__main__":
    if len(sys.argv) == 4:
        against_kvas(*sys.argv[1:])
    else:
        against_transformers()
