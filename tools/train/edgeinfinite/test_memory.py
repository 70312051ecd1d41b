"""Checks the attention that is trained against vectors of the float64 oracle, `python -m unittest` in this folder."""

import json
import pathlib
import unittest

import torch

from llama import Llama
from memory import Gates, Layer, Schedule, Settings, full_hidden_states, hidden_states

ROOT = pathlib.Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests/data/vectors/edgeinfinite.json").read_text())
# Answers have seven digits.
TOLERANCE = 2e-6


class Toy(Llama):
    """The model of the vectors: attention layers without norms or feed-forward halves, tokens that are their input."""

    def __init__(self, v=VECTORS):
        self.layers, self.heads, self.kv_heads, self.head_dim = v["layers"], v["heads"], v["kv_heads"], v["head_dim"]
        self.base, self.device, width = v["rope_base"], "cpu", v["heads"] * v["head_dim"]
        shapes = {
            "q": (width, width), "k": (width, -1), "v": (width, -1), "o": (width, width),
            "W1": (self.head_dim, -1), "W2": (-1, self.head_dim), "b1": (-1,), "b2": (-1,),
            "g": (self.heads, self.head_dim),
        }
        read = lambda layer, name: torch.tensor(layer[name], dtype=torch.float64).view(shapes[name])
        self.w = [{name: read(layer, name) for name in shapes} for layer in v["weights"]]
        self.inputs = torch.tensor(v["inputs"], dtype=torch.float64).view(-1, width)

    def embed(self, tokens):
        return self.inputs[tokens]

    def qkv(self, layer, x):
        return [(x @ self.w[layer][name]).unflatten(-1, (-1, self.head_dim)) for name in "qkv"]

    def finish(self, layer, x, mixed):
        return x + mixed.flatten(-2) @ self.w[layer]["o"]

    def gates(self):
        gates = Gates(self.layers, self.heads, self.head_dim, VECTORS["hidden"]).double()
        for layer, w in enumerate(self.w):
            with torch.no_grad():
                gates.fc1_weight[layer], gates.fc2_weight[layer], gates.gate[layer] = w["W1"].T, w["W2"].T, w["g"]
                gates.fc1_bias[layer], gates.fc2_bias[layer] = w["b1"], w["b2"]
        return gates


def settings(pos):
    return Settings(VECTORS["sink"], VECTORS["window"], VECTORS["segment"], pos)


class OfTheOracle(unittest.TestCase):
    def setUp(self):
        self.model = Toy()
        self.gates = self.model.gates()

    def run_on(self, tokens, pos, recompute, memory="gated"):
        schedule = Schedule(settings(pos), tokens, recompute)
        x = hidden_states(self.model, schedule, torch.arange(tokens)[None], memory, self.gates)
        return schedule, x[0].detach()

    def close(self, found, expected, what):
        expected = torch.as_tensor(expected, dtype=torch.float64).view(found.shape)
        error = float((found - expected).abs().max() / expected.abs().max())
        self.assertLess(error, TOLERANCE, what)

    def test_prompts(self):
        s, segment = VECTORS["sink"], VECTORS["segment"]
        for pos in ("cache", "abs"):
            for length, out in zip(VECTORS[pos]["prompts"], VECTORS[pos]["prompt_out"]):
                schedule, x = self.run_on(length, pos, True)
                stages = x[schedule.prefix :].unflatten(0, (schedule.stages, schedule.queries))
                last = length - s - (schedule.stages - 1) * segment
                found = [x[: schedule.prefix], stages[:-1, :segment].flatten(0, 1), stages[-1, :last]]
                self.close(torch.cat(found), out, f"{pos} prompt of {length}")

    def test_decoding(self):
        first = VECTORS["first"]
        for pos in ("cache", "abs"):
            for mode in ("inplace", "recompute"):
                schedule, x = self.run_on(len(self.model.inputs), pos, mode == "recompute")
                self.close(x[schedule.token_rows[first:]], VECTORS[pos][mode], f"{pos} {mode}")

    def test_memories(self):
        for pos in ("cache", "abs"):
            for name, recompute in (("inplace_", False), ("recompute_", True), ("", True)):
                schedule, found = Schedule(settings(pos), len(self.model.inputs), recompute), []
                x = self.model.embed(schedule.row_tokens[None])
                for layer in range(self.model.layers):
                    qkv = self.model.qkv(layer, x)
                    parts = Layer(self.model, schedule, *qkv)
                    found.append([memory[0, -1] for memory in parts.memories()])
                    mixed = self.gates.mix(layer, parts.read(), parts.local())
                    mixed = torch.cat([parts.local()[:, :1], mixed[:, 1:]], 1).flatten(1, 2)
                    x = self.model.finish(layer, x, torch.cat([parts.prefix, mixed], 1)).detach()
                for at, part in enumerate("mz"):
                    memories = torch.stack([layer[at] for layer in found])
                    self.close(memories, VECTORS[pos][name + part], f"{pos} {name}{part}")

    def test_short_inputs_are_the_plain_model(self):
        length = VECTORS["sink"] + VECTORS["window"] + VECTORS["segment"] - 1
        plain = full_hidden_states(self.model, torch.arange(length)[None])[0]
        for recompute in (False, True):
            schedule, x = self.run_on(length, "cache", recompute)
            self.close(x[schedule.token_rows], plain, f"recompute {recompute}")

    def test_moments_of_equal_keys_are_the_softmax(self):
        """Moments are exact when all that was absorbed has one score: keys of zero."""
        for w in self.model.w:
            w["k"].zero_()
        tokens = len(self.model.inputs)
        schedule = Schedule(settings("abs"), tokens, False)
        x = hidden_states(self.model, schedule, torch.arange(tokens)[None], "moments")[0]
        plain = full_hidden_states(self.model, torch.arange(tokens)[None])[0]
        self.close(x[schedule.token_rows], plain, "moments")

    def test_moments_are_first_order(self):
        """Scaling all keys down by ten takes the error down by more than fifty: the first order is right."""
        errors, keys = [], [w["k"].clone() for w in self.model.w]
        tokens = len(self.model.inputs)
        for scale in (0.1, 0.01):
            for w, k in zip(self.model.w, keys):
                w["k"] = k * scale
            schedule = Schedule(settings("abs"), tokens, False)
            x = hidden_states(self.model, schedule, torch.arange(tokens)[None], "moments")[0]
            plain = full_hidden_states(self.model, torch.arange(tokens)[None])[0]
            errors.append(float((x[schedule.token_rows] - plain).abs().max()))
        self.assertGreater(errors[0], 50 * errors[1])

    def test_gates_that_are_shut_are_the_window(self):
        with torch.no_grad():
            self.gates.gate.fill_(-800)
        for recompute in (False, True):
            shut = self.run_on(32, "cache", recompute)[1]
            self.close(shut, self.run_on(32, "cache", recompute, "none")[1], "shut")

    def test_unrotated_memories_do_not_depend_on_positions(self):
        """With `rope_in_memory` off, keys of a segment give the memory they give at any place."""
        schedule = Schedule(Settings(3, 4, 6, "abs", False), 32, False)
        qkv = self.model.qkv(0, self.model.embed(schedule.row_tokens[None]))
        matrix, _ = Layer(self.model, schedule, *qkv).memories()
        k, v = (torch.nn.functional.elu(qkv[1][0, 3:9]) + 1), qkv[2][0, 3:9]
        self.close(matrix[0, 1], torch.einsum("thd,the->hde", k, v), "first segment")


if __name__ == "__main__":
    unittest.main()
