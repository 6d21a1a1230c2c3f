"""Makes cases.json: small tokenizers of each family, and what the reference implementation (the `tokenizers` package on
PyPI) makes of texts with them. Run again only to add cases or families, with the tokenizers that are there, because
learning them again gives others: python make_cases.py cases.json > new.json"""

import json
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

LEARN = [
    "The river runs past the old mill, and the miller's daughter counts the boats that don't stop.",
    "We've counted 17 boats; they'll count 23 more before the evening's end! Isn't that enough?",
    "Naïve cafés and façades: über-modern, déjà vu. Ångström, Ελλάδα, Москва, 北京, 서울.",
    "hierarchical attention attends to hierarchies of tokens, sentences and paragraphs.",
    "def attend(query, keys): return softmax(query @ keys.T) @ values  # four spaces",
] * 20
TEXTS = [
    "",
    " ",
    "  \n\n ",
    "The miller's boats don't stop.",
    "THE RIVER RUNS",
    "unknowable xylophones",
    "Café naïve déjà-vu ÅNGSTRÖM",
    "北京 and 서울 and Москва",
    "a\u00a0b\u2003c\u200bd\u0000e\ufffdf",
    "e\u0301e\u0327\u0301",
    "İstanbul ß ẞ",
    "👩‍👩‍👧 🙂",
    "1,234.5 + x_1 != y->z",
    "tabs\t\tand   spaces\n\n\nand lines  ",
    "'s 't 're 'VE I'll we'd",
    "x" * 120,
    "[MASK] and <mask> or  <mask>  , <|endoftext|>[SEP]",
    "\v\f\x85\u2028\u3000",
    "the mill\u2003\u3000<mask>\u00a0end, \x85\u2028 <mask> \u200b<mask>\u202f<mask>",
    "a\u00a0<mask>é<mask>\x1c<mask>",
    "ends with space ",
    "hierarchicalattentionattendstotokenssentencesandparagraphs" * 2,
    *[letter * 31 for letter in "elnst. "],
    " starts with space",
    "\tstarts with tab",
    "᙭ ᜴ ᢅ ꦽ 𑇉 \u061d \u07fd",
    "...!!!???",
    "“quotes” — dashes… 。！",
    "1234567890 ٣٤٥ ½ⅷ 12a345",
    "I'LL WE'D it'S 'ſ 'lL 'x (don't)",
    "!word ?word \tword\nword \r\nword\u00a0word",
    "a  \n \n  b \t\n\n\tc  d\n",
    "x = y;\n\n  if (a): {}\r\n\r\n...\n",
    "e\u0301 \u212b \u1100\u1161\u11a8 o\u0323\u0302n\u0303o",
    "\n",
    "\r\n \n",
    "<tool> <|end|>the mill<tool><|begin|>",
]


def wordpiece(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    tokenizer.train_from_iterator(LEARN, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def learn(tokenizer, special, texts=LEARN, size=420):
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


def bpe(special, processor, prefix=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    learn(tokenizer, special)
    tokenizer.post_processor = processor
    return tokenizer


def roberta(prefix):
    return bpe(
        ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)],
        processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=prefix),
        prefix,
    )


WORDS = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def split_bpe(digits):
    """Byte-level BPE behind a Split, as Llama 3 and Qwen2 have it, with a special token and one that is text. It learns
    from whole texts, so that its merges would join what the pattern keeps apart."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learn(tokenizer, ["<|end|>", "<|begin|>"], [text for text in TEXTS if len(text) < 80] * 3, 700)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS % digits), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def llama3():
    tokenizer = split_bpe("{1,3}")
    made = json.loads(tokenizer.to_str())
    made["model"]["ignore_merges"] = True
    made["model"]["merges"] = made["model"]["merges"][::2]  # so that some words are found only as wholes
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B:1", special_tokens=[("<|begin|>", 1)]
            ),
        ]
    )
    return tokenizer


def qwen2():
    tokenizer = split_bpe("")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def case(tokenizer, text):
    encoding = tokenizer.encode(text)
    at = [0]
    for character in text:
        at.append(at[-1] + len(character.encode()))
    # Special tokens around a text have no place in it.
    places = [
        [at[b], at[e]] if not special or b != e else None
        for (b, e), special in zip(encoding.offsets, encoding.special_tokens_mask)
    ]
    return {"text": text, "ids": encoding.ids, "places": places}


def families():
    """Tokenizers by name: those of the file that the command line names, and new ones."""
    makers = {
        "uncased WordPiece": lambda: wordpiece(True),
        "cased WordPiece": lambda: wordpiece(False),
        "GPT-2": lambda: bpe(["<|endoftext|>"], processors.ByteLevel(trim_offsets=False)),
        "RoBERTa": lambda: roberta(False),
        "RoBERTa with a space in front": lambda: roberta(True),
        "Llama 3": llama3,
        "Qwen2": qwen2,
    }
    made = {}
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as file:
            for family in json.load(file)["families"]:
                made[family["name"]] = Tokenizer.from_str(json.dumps(family["tokenizer"]))
    return {name: made[name] if name in made else make() for name, make in makers.items()}


json.dump(
    {
        "origin": f"tokenizers {tokenizers.__version__}, tests/tokenizer/make_cases.py",
        "families": [
            {"name": name, "tokenizer": json.loads(t.to_str()), "cases": [case(t, text) for text in TEXTS]}
            for name, t in families().items()
        ],
    },
    sys.stdout,
    ensure_ascii=True,
    separators=(",", ":"),
)
