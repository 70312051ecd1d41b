"""Trains the tokenizer: python tokenizer.py DATA VOCABULARY, writes DATA/tokenizer.json.

Byte-pair encoding over the words of Qwen 2's expression, digit by digit; learned from stories, some books and generated
conversations."""

import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import words
from packing import END, EOT, START, texts
from talk import Talker

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def main():
    data, size = sys.argv[1], int(sys.argv[2])
    stories, books = texts(data, "stories"), texts(data, "books")
    words.load(data)
    talker = Talker(random.Random(0), stories, books)

    def sample():
        yield from (story[:4000] for story in stories[::2])
        yield from (book[:60000] for book in books[:: max(1, len(books) // 40)])
        for _ in range(2500):
            for role, text in talker.conversation(800):
                yield f"{role}\n{text}"

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated", invert=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(sample(), trainers.BpeTrainer(vocab_size=size - 3, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([EOT, START, END])
    assert tokenizer.get_vocab_size() == size, tokenizer.get_vocab_size()
    tokenizer.save(f"{data}/tokenizer.json")


if __name__ == "__main__":
    main()
