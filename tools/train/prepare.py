"""Packs the texts that training needs: python prepare.py TEXTS DATA

TEXTS holds stories.train.txt, books.train.txt and stories.valid.txt, documents separated by <|endoftext|>; .zst will do.
Of each book no more than 160 000 characters are taken, from its middle."""

import lzma
import os
import subprocess
import sys

EOT = "<|endoftext|>"
MOST = 160_000


def read(folder, name):
    path = f"{folder}/{name}"
    if os.path.exists(path):
        return open(path, encoding="utf-8", errors="ignore").read()
    return subprocess.run(["zstd", "-dc", path + ".zst"], capture_output=True, check=True).stdout.decode(errors="ignore")


def write(folder, name, documents):
    with lzma.open(f"{folder}/{name}.txt.xz", "wt", encoding="utf-8", preset=9) as f:
        f.write(f"\n{EOT}\n".join(documents))


def main():
    source, target = sys.argv[1:3]
    os.makedirs(target, exist_ok=True)
    for out, name in ("stories", "stories.train.txt"), ("books", "books.train.txt"), ("valid", "stories.valid.txt"):
        documents = [text.strip() for text in read(source, name).split(EOT) if text.strip()]
        if out == "books":
            middle = lambda text: text[len(text) // 2 - MOST // 2 :][:MOST] if len(text) > MOST else text
            documents = [middle(text) for text in documents]
        print(out, len(documents), sum(map(len, documents)), "characters")
        write(target, out, documents)


if __name__ == "__main__":
    main()
