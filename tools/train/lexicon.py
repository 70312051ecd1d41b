"""Collects nouns, words and names from the texts: python lexicon.py DATA, writes DATA/lexicon.json.

A model that only ever saw fifty secret words learns these fifty instead of repeating what it was told."""

import collections
import json
import re
import sys

import words as W
from packing import texts


def main():
    data = sys.argv[1]
    text = "\n".join(texts(data, "stories") + [book[:100000] for book in texts(data, "books")])
    held = {word.lower() for name in dir(W) if name.startswith("HELD") for item in getattr(W, name) for word in item.split()}
    count = collections.Counter
    lower = count(re.findall(r"\b[a-z]{3,10}\b", text))
    upper = count(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,9}\b", text))
    after_a = count(re.findall(r"\ban? ([a-z]{3,10})[.,;!?]", text))
    after_the = count(re.findall(r"\bthe ([a-z]{3,10})\b", text))
    nouns = [word for word, n in after_a.most_common() if n >= 3 and after_the[word] >= 5 and not word.endswith(("ly", "ing", "ed")) and word not in held]
    words = [word for word, n in lower.most_common(9000)[150:] if len(word) >= 4 and n >= 15 and word not in held]
    names = [name for name, n in upper.most_common(4500) if n >= 3 and lower[name.lower()] < n / 3 and name.lower() not in held]
    print(len(nouns), nouns[:40], nouns[-20:], len(words), words[-20:], len(names), names[:30], names[-20:])
    with open(f"{data}/lexicon.json", "w") as f:
        json.dump(dict(nouns=nouns, words=words, names=names), f)


if __name__ == "__main__":
    main()
