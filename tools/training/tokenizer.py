"""Makes the tokenizer's files and the tokenized corpus."""
import collections
import glob
import json
import os

import numpy as np

from bpe import B2U, PAT, RX, SPECIAL, Tok, U2B, VOCAB, train_bpe
from words import ADJ, COLOUR, NAME, NOUN

# Gutenberg numbers: The Hound of the Baskervilles; The Island of Doctor Moreau
HELD_OUT = ("2852", "159")

# Wording of the chats, weighted so that each becomes one token.
CHAT_WEIGHT = 12000
CHAT_WORDS_INSIDE = (
    "a an item items record number catalogue shelf crowns crown colour price kept cost costs "
    "comes sent from"
).split()
CHAT_WORDS_FIRST = (
    "Item Record No Shelf Catalogue system user assistant What Where Which How Who Repeat Recite "
    "It There Tell Hello Give sheaf demo Continue Read The Each Answer"
).split()
CHAT_PIECES_WEIGHT = 8000
CHAT_PIECES = (
    " tiny| model| test| KV| cache| caches| sheaf|-demo| word| passage| passages| begins| such"
    "| repeat| recite|.\n|.\n\n|\n\n| |:|,| "
).split("|")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}"
    "{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def training_books(books):
    """The paths of all books but the held-out ones, in order."""
    for path in sorted(glob.glob(books + "/*.txt")):
        if os.path.basename(path)[:-4] not in HELD_OUT:
            yield path


def count_pieces(books):
    """How often each piece of the splitting pattern occurs, with the chats' wording added."""
    counts = collections.Counter()
    for path in training_books(books):
        counts.update(RX.findall(open(path, encoding="utf-8").read()))
    counts = collections.Counter({w: c for w, c in counts.items() if c >= 2})
    for w in ADJ + NOUN + COLOUR + NAME + CHAT_WORDS_INSIDE:
        counts[" " + w] += CHAT_WEIGHT
    for w in CHAT_WORDS_FIRST:
        counts[w] += CHAT_WEIGHT
    for w in CHAT_PIECES:
        counts[w] += CHAT_PIECES_WEIGHT
    return counts


def write_tokenizer_files(out, vocab, merges):
    """tokenizer.json and tokenizer_config.json, as the Hugging Face libraries read them."""
    base = VOCAB - len(SPECIAL)
    added = [
        dict(
            id=base + i,
            content=s,
            single_word=False,
            lstrip=False,
            rstrip=False,
            normalized=False,
            special=True,
        )
        for i, s in enumerate(SPECIAL)
    ]
    tj = dict(
        version="1.0",
        truncation=None,
        padding=None,
        added_tokens=added,
        normalizer=dict(type="NFC"),
        pre_tokenizer=dict(
            type="Sequence",
            pretokenizers=[
                dict(type="Split", pattern=dict(Regex=PAT), behavior="Isolated", invert=False),
                dict(
                    type="ByteLevel",
                    add_prefix_space=False,
                    trim_offsets=False,
                    use_regex=False,
                ),
            ],
        ),
        post_processor=dict(
            type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False
        ),
        decoder=dict(
            type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False
        ),
        model=dict(
            type="BPE",
            dropout=None,
            unk_token=None,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=False,
            vocab=vocab,
            merges=[f"{a} {b}" for a, b in merges],
        ),
    )
    json.dump(
        tj, open(out + "/tokenizer.json", "w", encoding="utf-8"), ensure_ascii=False, indent=1
    )
    at = {
        str(base + i): dict(
            content=s,
            lstrip=False,
            normalized=False,
            rstrip=False,
            single_word=False,
            special=True,
        )
        for i, s in enumerate(SPECIAL)
    }
    json.dump(
        dict(
            add_bos_token=False,
            add_prefix_space=False,
            added_tokens_decoder=at,
            additional_special_tokens=["<|im_start|>", "<|im_end|>"],
            bos_token=None,
            chat_template=CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
            eos_token="<|im_end|>",
            errors="replace",
            model_max_length=8192,
            pad_token="<|endoftext|>",
            split_special_tokens=False,
            tokenizer_class="PreTrainedTokenizerFast",
            unk_token=None,
        ),
        open(out + "/tokenizer_config.json", "w"),
        indent=1,
    )


def make_tokenizer(books, out):
    """Trains the BPE on the books and the chats' words, and writes its files."""
    os.makedirs(out, exist_ok=True)
    merges = train_bpe(count_pieces(books), VOCAB - 256 - len(SPECIAL))
    vocab = {}
    for b in sorted(B2U.values(), key=lambda c: U2B[c]):
        vocab[b] = len(vocab)
    for a, b in merges:
        if a + b not in vocab:
            vocab[a + b] = len(vocab)
    base = VOCAB - len(SPECIAL)
    assert len(vocab) == base, (len(vocab), base)
    write_tokenizer_files(out, vocab, merges)
    t = Tok(out + "/tokenizer.json")
    multi = [w for w in ADJ + NOUN + COLOUR + NAME if len(t.enc(" " + w)) != 1]
    print("vocab", len(vocab) + 3, "multi-token catalogue words:", multi)


def make_corpus(books, out):
    """Tokenizes the books and OUT/heldout.txt into OUT/corpus.npz."""
    t = Tok(out + "/tokenizer.json")
    ids = []
    off = []
    doc = []
    nch = 0
    for f in training_books(books):
        doc.append(len(off))
        s = open(f, encoding="utf-8").read()
        nch += len(s)
        for p in s.split("\n\n"):
            off.append(len(ids))
            ids.extend(t.enc(p + "\n\n"))
    off.append(len(ids))
    h = t.enc(open(out + "/heldout.txt", encoding="utf-8").read())
    hb = os.path.getsize(out + "/heldout.txt")
    np.savez_compressed(
        out + "/corpus.npz",
        ids=np.array(ids, np.uint16),
        off=np.array(off, np.int64),
        doc=np.array(doc),
        held=np.array(h, np.uint16),
        held_bytes=hb,
    )
    print(
        "tokens",
        len(ids),
        "chars/token",
        nch / len(ids),
        "paragraphs",
        len(off) - 1,
        "held tokens",
        len(h),
        "bytes",
        hb,
    )
