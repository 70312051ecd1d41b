"""Texts as tokens, and training prompts that ask for facts told long before."""

import pathlib
import random

import numpy as np
import torch
from tokenizers import Tokenizer

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# None of these names is in the prompts that are measured, so that no fact of theirs is.
NAMES = (
    "Alma Boris Celia Doris Edgar Flora Greta Hugo Ines Jasper Karin Lionel Marta Norman Olga Petra Quentin "
    "Rupert Silas Thea Ursula Viktor Wanda Xavier Yvonne Zelda "
    "Anton Bruno Clara Denise Ernest Fritz Gloria Harold Irene Julia "
    "Klaus Laura Martin Nadia Oscar Pablo Ralf Stella Tilda Umberto Valerie Walter Yasmin Zacharias"
).split()
FACTS = {
    "color": "pink gray purple yellow scarlet crimson copper".split(),
    "city": "London Madrid Vienna Berlin Moscow Dublin Athens Boston Naples Geneva".split(),
    "animal": "dog cat horse sheep lion mouse duck eagle snake frog cow pig".split(),
    "tool": "brush needle shovel ladder hook nail chain pen bucket broom".split(),
    "fruit": "banana orange berry lime nut date olive quince".split(),
    "stone": "diamond marble granite coral crystal emerald".split(),
    "drink": "tea milk wine water beer cider coffee".split(),
    "flower": "rose lily daisy tulip violet poppy iris".split(),
    "number": None,
    "code": None,
}


def value(chance, kind):
    return str(chance.randint(100, 999)) if FACTS[kind] is None else chance.choice(FACTS[kind])


def documents(path):
    """The documents of a text file."""
    text = pathlib.Path(path).read_text(errors="ignore")
    return [part.strip() for part in text.split(END) if part.strip()]


class Tokens:
    """A tokenizer and what it makes of texts."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
        self.cache = {}

    def of(self, text):
        if text not in self.cache:
            self.cache[text] = np.array(self.tokenizer.encode(text).ids, np.uint16)
        return self.cache[text]

    def of_long(self, text, piece=100_000):
        """Tokens of a text of any length, cut at white space."""
        pieces, at = [], 0
        while at < len(text):
            end = at + piece
            if end < len(text):
                end = max(text.rfind(" ", at + 1, end), text.rfind("\n", at + 1, end), at + 1)
            pieces.append(text[at:end])
            at = end
        return np.concatenate([np.array(read.ids, np.uint16) for read in self.tokenizer.encode_batch_fast(pieces)])

    def recall(self, seed, filler, length):
        """Text of `filler` with notes in it and questions about them: `length + 1` tokens, and which are answers."""
        chance, out, answers, count, known = random.Random(seed), [], [], 0, {}
        at, gap = chance.randrange(0, len(filler) - length - 1), chance.choice([40, 80, 160, 320])
        while count <= length:
            text = filler[at : at + chance.randrange(gap // 2, gap * 2)]
            at += len(text)
            kind, who = chance.choice(list(FACTS)), chance.choice(NAMES)
            if len(known) < 4 or chance.random() < 0.4:
                told = known.setdefault((kind, who), value(chance, kind))
                parts = [(f"\n{START}note\nThe {kind} of {who} is {told}.{STOP}\n", False)]
            else:
                (kind, who), told = chance.choice(list(known.items()))
                question = f"\n{START}user\nWhat is the {kind} of {who}?{STOP}\n"
                begun = f"{START}assistant\nThe {kind} of {who} is"
                parts = [(question + begun, False), (f" {told}", True), (f".{STOP}\n", False)]
            for tokens, answer in [(text, False)] + [(self.of(part), answer) for part, answer in parts]:
                out.append(tokens)
                answers.append(np.full(len(tokens), answer))
                count += len(tokens)
        return np.concatenate(out)[: length + 1], np.concatenate(answers)[: length + 1]


def windows(tokens, count, length, generator):
    """`[count, length + 1]` windows of a stream of tokens, each at a place of its own."""
    starts = torch.randint(0, len(tokens) - length - 1, (count, 1), generator=generator)
    return torch.from_numpy(tokens.astype(np.int64))[starts + torch.arange(length + 1)]
