"""Makes spm.json and bpe.json: small vocabularies, and the ids that SentencePiece and Hugging Face give for texts.

Needs the packages `gguf`, `sentencepiece`, `protobuf` and `tokenizers`. Run it in this folder as
`python make_tokenizers.py stories260K.gguf`: the SentencePiece vocabulary is the one of that file (MIT licence,
Andrej Karpathy). The BPE vocabulary is trained here."""

import json
import sys

import sentencepiece
from gguf import GGUFReader
from sentencepiece import sentencepiece_model_pb2 as model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = json.load(open("splits.json"))["texts"] + [
    "Once upon a time, there was a little girl named Lily.",
    "She loved to play outside in the park.  One day, she saw a big, red ball!",
    "</s> is text, and so is <s> <unk> <0x0A>",
    "\u2581one\u2581 \u2581\u2581two",
    "zzzz\x00\x01\x7f\ufeff\ufffd",
]


def spm(path):
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    scores = [float(score) for score in fields["tokenizer.ggml.scores"].contents()]
    types = [int(kind) for kind in fields["tokenizer.ggml.token_type"].contents()]
    proto = model.ModelProto()
    proto.trainer_spec.model_type = model.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.vocab_size = len(tokens)
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    for token, score, kind in zip(tokens, scores, types):
        proto.pieces.add(piece=token, score=score, type=kind)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    # SentencePiece drops NUL and makes nothing of an empty text.
    texts = [text.replace("\x00", "") for text in TEXTS]
    cases = [[text, processor.encode(text)] for text in texts]
    write("spm.json", {"tokens": tokens, "scores": scores, "types": types, "cases": cases})


def bpe():
    expression = (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    merges = [" ".join(pair) for pair in state["merges"]]
    # Without its special tokens the tokenizer takes their texts as text, as `Special::Literal` does.
    plain = Tokenizer(models.BPE(state["vocab"], [tuple(pair) for pair in state["merges"]]))
    plain.pre_tokenizer = tokenizer.pre_tokenizer
    cases = [[text, plain.encode(text).ids] for text in TEXTS]
    parsed = [[text, tokenizer.encode(text).ids] for text in ["<|im_start|>user\nHi<|im_end|>\n<|im_end", "a<|endoftext|>"]]
    types = [3, 3, 3] + [1] * (len(tokens) - 3)
    write("bpe.json", {"tokens": tokens, "merges": merges, "types": types, "cases": cases, "parsed": parsed})


def write(name, value):
    with open(name, "w") as out:
        json.dump(value, out, ensure_ascii=True)
        out.write("\n")


spm(sys.argv[1])
bpe()
