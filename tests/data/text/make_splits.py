"""Makes splits.json: how Oniguruma, with the models' published expressions, splits texts into pieces.

Needs the package `tokenizers`. Run it in this folder."""

import json
from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
# With (?i) as published, the long s is an s here. At the beginning of an expression Oniguruma does not take it for one.
ATTACHED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
TAIL = r"|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + TAIL
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+%s|" + r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*%s"
HAN_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
HAN_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = CASED.replace(UPPER, HAN_UPPER).replace(LOWER, HAN_LOWER)
SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
V3 = SIGNS + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + TAIL
GPT_4O = CASED % (ATTACHED, ATTACHED) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + TAIL
LLAMA3_HEAD = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
POWERS = "".join(r"|\s{%d}(?!\S)" % (1 << bit) for bit in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"

RULES = {
    "llama-bpe": [LLAMA3_HEAD + TAIL],
    "jais-2": [LLAMA3_HEAD + POWERS],
    "qwen2": [QWEN2],
    "qwen35": [
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        + TAIL
    ],
    "gpt-2": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "deepseek-coder": [
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", V3],
    "gpt-4o": [GPT_4O],
    "tekken": [CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + TAIL],
    "kimi-k2": [
        r"[\p{Han}]+|"
        + KIMI % (ATTACHED, ATTACHED)
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        + TAIL
    ],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "bloom": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"],
    "viking": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"],
    "bailingmoe": [
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + TAIL
    ],
    "seed-coder": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+" + TAIL
    ],
    "exaone-moe": [
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
        + TAIL
    ],
    "minicpm5": [
        r"\p{N}{1,3}",
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + TAIL,
    ],
    "spark2_5": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        SIGNS + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]" + TAIL,
        r"\p{N}",
    ],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
}

TEXTS = [
    "",
    " ",
    "  ",
    "   x",
    "\t\tx \n",
    "It\u2019s it'\u017f HE'\u017fT '\u017f 'S",
    "It's HE'S they'LL I'D we'Re 'tis rock'n'roll",
    "Hello, world! How are you?  Fine...   thanks\n\n\n  next line\r\n\r\nend  ",
    "a1b22c333d4444e55555 1234567 12,345.678 \u0663\u0664\u0665\u0666 x\u00b2\u00bd",
    "99999 1234567890a 12_34 4567",
    "fn main() {\n    println!(\"{}\", x+=1); // ok\n\t\treturn;\n}\n",
    "CamelCaseHTTPServer iPhone XMLparser ABCdefGHI \u01c5ungla",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929 \u306f\u826f\u3044 \u30c6\u30b9\u30c8\uff01",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0935\u093e\u0915\u094d\u092f\u0964 a\u0301e\u0301 \u0301x",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0391\u03b2\u03b3\u0394 \u00c4\u00f6\u00fc\u00df \u0587",
    "\U0001f999.cpp \U0001f469\u200d\U0001f469\u200d\U0001f467 \u2026\u201cq\u201d \u2014 \u20ac5",
    "x\u00a0y\u2003z\u3000w\u0085v\u2028u",
    " = = == => <|im_end|> a/b//c http://x.y/z?q=1\n/\n",
    "     \n     \n  \t a",
    "n" + " " * 700 + "n" + " " * 1025,
    "A" * 40 + "a" * 40 + "1" * 10 + "." * 10,
    "\u017f'\u017f 's \u212a",
]

splits = {}
for name, rules in RULES.items():
    stages = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in rules]
    sequence = pre_tokenizers.Sequence(stages)
    splits[name] = [[piece for piece, _ in sequence.pre_tokenize_str(text)] for text in TEXTS]
    for text, pieces in zip(TEXTS, splits[name]):
        assert "".join(pieces) == text, (name, text)
with open("splits.json", "w") as out:
    json.dump({"texts": TEXTS, "splits": splits}, out, ensure_ascii=True)
    out.write("\n")
