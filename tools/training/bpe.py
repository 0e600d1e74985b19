"""Byte-level byte-pair encoding: the trainer, and an encoder that reads tokenizer.json."""
import collections
import heapq
import json

import regex

# the splitting pattern of Qwen2: single digits
PAT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RX = regex.compile(PAT)
VOCAB = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def bytes_to_unicode():
    """The printable character that stands for each byte, as GPT-2 chose them."""
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    cs = bs[:]
    n = 0
    for b in range(256):
        if b not in bs:
            bs.append(b)
            cs.append(256 + n)
            n += 1
    return {b: chr(c) for b, c in zip(bs, cs)}


B2U = bytes_to_unicode()
U2B = {v: k for k, v in B2U.items()}


def train_bpe(counts, nmerges):
    """Merges learned from {piece: count}, in order; ties go to the smaller pair."""
    words = []
    freqs = []
    for w, c in counts.items():
        words.append([B2U[b] for b in w.encode()])
        freqs.append(c)
    pair_c = collections.Counter()
    where = collections.defaultdict(set)
    for i, w in enumerate(words):
        for p in zip(w, w[1:]):
            pair_c[p] += freqs[i]
            where[p].add(i)
    heap = [(-c, p) for p, c in pair_c.items()]
    heapq.heapify(heap)
    merges = []
    while len(merges) < nmerges and heap:
        c, p = heapq.heappop(heap)
        if pair_c.get(p, 0) != -c:
            if pair_c.get(p, 0) > 0:
                heapq.heappush(heap, (-pair_c[p], p))
            continue
        if c == 0:
            break
        merges.append(p)
        a, b = p
        ab = a + b
        touched = set()
        for i in list(where[p]):
            w = words[i]
            f = freqs[i]
            for q in zip(w, w[1:]):
                pair_c[q] -= f
                touched.add(q)
            nw = []
            j = 0
            while j < len(w):
                if j + 1 < len(w) and w[j] == a and w[j + 1] == b:
                    nw.append(ab)
                    j += 2
                else:
                    nw.append(w[j])
                    j += 1
            words[i] = nw
            for q in zip(nw, nw[1:]):
                pair_c[q] += f
                where[q].add(i)
                touched.add(q)
        for q in touched:
            if pair_c[q] > 0:
                heapq.heappush(heap, (-pair_c[q], q))
            else:
                pair_c.pop(q, None)
                where.pop(q, None)
    return merges


class Tok:
    """Encodes and decodes with a tokenizer.json made here."""

    def __init__(self, path):
        j = json.load(open(path))
        m = j["model"]
        self.vocab = m["vocab"]
        mg = [tuple(x.split(" ")) if isinstance(x, str) else tuple(x) for x in m["merges"]]
        self.rank = {p: i for i, p in enumerate(mg)}
        self.special = {t["content"]: t["id"] for t in j["added_tokens"]}
        self.inv = {v: k for k, v in self.vocab.items()}
        self.cache = {}

    def _word(self, w):
        r = self.cache.get(w)
        if r is not None:
            return r
        s = [B2U[b] for b in w.encode()]
        while len(s) > 1:
            best = min(
                range(len(s) - 1), key=lambda i: self.rank.get((s[i], s[i + 1]), 1 << 30)
            )
            p = (s[best], s[best + 1])
            if p not in self.rank:
                break
            n = []
            i = 0
            while i < len(s):
                if i + 1 < len(s) and (s[i], s[i + 1]) == p:
                    n.append(s[i] + s[i + 1])
                    i += 2
                else:
                    n.append(s[i])
                    i += 1
            s = n
        r = [self.vocab[x] for x in s]
        if len(self.cache) < 400000:
            self.cache[w] = r
        return r

    def enc(self, text):
        out = []
        for w in RX.findall(text):
            out.extend(self._word(w))
        return out

    def enc_special(self, text):
        out = []
        for part in regex.split(r"(<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>)", text):
            if part in self.special:
                out.append(self.special[part])
            elif part:
                out.extend(self.enc(part))
        return out

    def dec(self, ids):
        out = []
        buf = bytearray()
        for i in ids:
            i = int(i)
            t = self.inv.get(i)
            if t is None or t in self.special:
                out.append(buf.decode("utf-8", "replace"))
                buf = bytearray()
                out.append({v: k for k, v in self.special.items()}[i])
            else:
                buf.extend(U2B[c] for c in t)
        out.append(buf.decode("utf-8", "replace"))
        return "".join(out)
