"""Conversations and texts as rows of tokens."""

import lzma
import random

import numpy as np
from tokenizers import Tokenizer

EOT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Set in tokens that count little in the loss: what users say cannot be foreseen.
QUIET = 0x8000


def texts(folder, name):
    """The documents of a file of texts."""
    with lzma.open(f"{folder}/{name}.txt.xz", "rt", encoding="utf-8") as f:
        return [text.strip() for text in f.read().split(EOT) if text.strip()]


def render(messages):
    """Messages (role, text) as the chat template writes them."""
    return "".join(f"{START}{role}\n{text}{END}\n" for role, text in messages)


class Packer:
    """Fills rows with conversations; `data` is the folder of the texts that some of them quote."""

    def __init__(self, tokenizer, data, seed):
        self.tokenizer = Tokenizer.from_file(tokenizer)
        self.eot, self.start = self.tokenizer.token_to_id(EOT), self.tokenizer.token_to_id(START)
        self.assistant = self.ids("assistant\n")[0]
        assert self.ids("user\n")[0] != self.assistant
        self.random = random.Random(seed)
        if data:
            import words
            from talk import Talker
            words.load(data)
            self.talker = Talker(self.random, texts(data, "stories"), texts(data, "books"))

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def text_ids(self, text):
        """A document and its end; long ones in parts, for the tokenizer's sake."""
        parts = [text[i : i + 100000] for i in range(0, len(text), 100000)]
        return np.array([token for part in parts for token in self.ids(part)] + [self.eot], np.uint16)

    def conversation_ids(self, messages):
        """Tokens of a conversation, those of users and systems marked."""
        tokens = np.array(self.ids(render(messages)) + [self.eot], np.uint16)
        starts = np.flatnonzero(tokens == self.start)
        loud = np.concatenate([[False], tokens[starts + 1] == self.assistant])
        turn = np.cumsum(tokens == self.start)
        return np.where(loud[turn], tokens, tokens | QUIET).astype(np.uint16)

    def row(self, length):
        """One row of conversations; the last one is cut off."""
        row, filled = np.empty(length, np.uint16), 0
        while filled < length:
            left = length - filled
            # Many short ones, and some that fill the row.
            wanted = self.random.choice([200, 400, 700, 1100, 1600, length, length])
            tokens = self.conversation_ids(self.talker.conversation(min(wanted, left)))[:left]
            row[filled : filled + len(tokens)] = tokens
            filled += len(tokens)
        return row
