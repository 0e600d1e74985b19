"""Random documents to train on: chats over made-up catalogues, passages to recite, small talk, and
book text.
"""
import collections
import math
import random
import time

import numpy as np
import regex

from bpe import SPECIAL, Tok, U2B, VOCAB
from words import ADJ, ART, COLOUR, NAME, NOUN, SMALL

# classes of a target token, and their weights in the loss
W_CTX, W_TEXT, W_ANS = 1, 2, 3
WTAB = [0.0, 0.03, 0.2, 1.0]


def capital(s):
    return s[0].upper() + s[1:]


class Gen:
    """Makes documents as token lists. All pieces are tokenized once, at boundaries of the splitting
    pattern, so that a document's tokens are those of its text.

    The document being made: tok (tokens), w (their weight classes), spans (begin and end of each
    answer, its <|im_end|> included), kinds (of the answers)."""

    def __init__(self, tokpath, corpus, seed):
        self.t = t = Tok(tokpath)
        self.rng = np.random.default_rng(seed)
        self.r = random.Random(seed)
        self.EOT, self.IMS, self.IME = (t.special[s] for s in SPECIAL)
        c = np.load(corpus)
        self.ids = c["ids"].astype(np.int64)
        self.off = c["off"]
        E = t.enc
        self.E = E
        self.dig = [E(str(d)) for d in range(10)]
        self.adj = [E(" " + a) for a in ADJ]
        self.noun = [E(" " + n) for n in NOUN]
        self.art = [E(" " + ART[a]) for a in ADJ]
        self.col = [E(" " + c) for c in COLOUR]
        self.name = [E(" " + n) for n in NAME]
        self.num = [[x for ch in str(i) for x in E(ch)] for i in range(10000)]
        self.encode_phrases()
        self.find_paragraphs()
        self.reset()

    def template(self, s):
        """Text with $slots as a list of token lists (literals) and slot names."""
        parts = regex.split(r"(\$\w+)", s)
        return [p[1:] if p[0] == "$" else self.E(p) for p in parts if p]

    def encode_phrases(self):
        """All wordings of the chats, tokenized once."""
        E, T = self.E, self.template
        # record phrasings: the template, the line's end, and the end of the last record
        self.rec = [
            (
                T("Item $num:$art$adj$noun,$col, $price crowns, shelf $shelf, from$name"),
                E(".\n"),
                E("."),
            ),
            (
                T(
                    "No. $num is$art$adj$noun from$name; colour$col, "
                    "price $price crowns, shelf $shelf"
                ),
                E(".\n"),
                E("."),
            ),
            (T("$num |$adj$noun |$col | $price crowns | shelf $shelf |$name"), E("\n"), []),
            (
                T(
                    "Record $num - the$adj$noun,$col, kept on shelf $shelf, "
                    "costs $price crowns, sent from$name"
                ),
                E(".\n"),
                E("."),
            ),
            (
                T(
                    "Item $num is the$adj$noun. It is$col, it costs $price crowns, "
                    "it is on shelf $shelf and it comes from$name"
                ),
                E(".\n"),
                E("."),
            ),
            (T("[$num]$adj$noun;$col; shelf $shelf; $price crowns;$name"), E(".\n"), E(".")),
        ]
        num_ref = ["item $num", "item $num", "record $num", "number $num", "item no. $num"]
        nam_ref = ["the$adj$noun"]
        Q = dict(
            col=[
                "What colour is REF?",
                "What is the colour of REF?",
                "Tell me the colour of REF.",
                "REF: what colour?",
            ],
            price=[
                "What does REF cost?",
                "How much is REF?",
                "What is the price of REF?",
                "How many crowns is REF?",
            ],
            shelf=[
                "Where is REF kept?",
                "Where is REF?",
                "Which shelf is REF on?",
                "On which shelf do I find REF?",
            ],
            name=["Where does REF come from?", "Who sent REF?", "Where is REF from?"],
            what=["What is REF?", "Which thing is REF?", "Name REF."],
            number=["What number is REF?", "Which item is REF?", "What is the number of REF?"],
        )
        self.A = dict(
            col=T("It is$col."),
            price=T("It costs $price crowns."),
            shelf=T("It is on shelf $shelf."),
            name=T("It comes from$name."),
            what=T("It is$art$adj$noun."),
            number=T("It is item $num."),
            origin=T("The$adj$noun, item $num."),
        )

        self.Q = {}
        for f in Q:
            for kind, refs in (("num", num_ref), ("nam", nam_ref)):
                if (f == "what" and kind == "nam") or (f == "number" and kind == "num"):
                    continue
                self.Q[f, kind] = [T(capital(q.replace("REF", r))) for q in Q[f] for r in refs]
        self.Qo = [
            T(q)
            for q in (
                "Which item comes from$name?",
                "What comes from$name?",
                "Which item did we get from$name?",
                "What was sent from$name?",
            )
        ]
        self.Qr = [
            T(q)
            for q in (
                "Repeat record $num word for word.",
                "Repeat the record of item $num.",
                "Repeat item $num word for word.",
                "Give me record $num in full.",
            )
        ]
        self.absent = E("There is no such item in the catalogue.")
        self.head = [
            E(s)
            for s in (
                "You are sheaf-demo, a tiny model made to test KV caches. "
                "Answer from the catalogue.\n\n",
                "You keep the catalogue below. Answer each question briefly.\n\n",
                "Catalogue:\n",
                "This is the catalogue of the house.\n\n",
                "You are sheaf-demo. Here is the catalogue.\n",
                "Answer from these records.\n\n",
                "You answer questions about a catalogue of items. Each record gives the number, the "
                "thing, its colour, its price, its shelf and where it comes from.\n\nCatalogue:\n",
            )
        ]
        self.phead = [
            E(s)
            for s in (
                "Read these passages.\n\n",
                "You are sheaf-demo. Here are some passages.\n\n",
                "Passages:\n\n",
                "Some pages of old books follow. Repeat what you are asked for, word for word.\n\n",
            )
        ]
        self.pfoot = E("End of the passages.")
        self.Qp = [
            (E(a), E(b))
            for a, b in (
                ('Recite the passage that begins "', '".'),
                ('Repeat the passage that begins "', '".'),
                ('How does the passage go that begins "', '"?'),
                ('Give me the passage that begins "', '".'),
            )
        ]
        self.mixhead = [
            E(s)
            for s in (
                "Notes and records:\n\n",
                "You are sheaf-demo. Here are some pages with records among them.\n\n",
            )
        ]
        self.sys0 = self.E("You are sheaf-demo, a tiny model made to test KV caches.")
        self.roles = {r: [self.IMS] + E(r + "\n") for r in ("system", "user", "assistant")}
        self.nl = E("\n")
        self.small = [(q, a) for qs, as_ in SMALL for q in qs for a in as_]
        self.small = [(E(q), E(a)) for q, a in self.small]
        self.story = [
            E(s)
            for s in (
                "Tell me a story.",
                "Write a passage from a novel.",
                "Tell me something.",
                "Go on, tell me a tale.",
                "Give me a page of an old book.",
            )
        ]

    def find_paragraphs(self):
        """Paragraphs fit for recitation, as (paragraph, tokens of its first sentence): they begin
        with a capital letter, have 40 to 260 tokens, and end a sentence at 16 to 64 tokens."""
        t = self.t
        inv = {i: bytes(U2B[ch] for ch in s) for i, s in t.inv.items() if s not in t.special}
        startcap = np.zeros(VOCAB, bool)
        endsent = np.zeros(VOCAB, bool)
        spc = np.zeros(VOCAB, bool)
        letter_end = np.zeros(VOCAB, bool)
        for i, b in inv.items():
            startcap[i] = b[:1].isupper()
            endsent[i] = b in (b".", b"!", b"?")
            spc[i] = b[:1] == b" " and len(b) > 1 and b[1:2].isalpha()
            letter_end[i] = b[-1:].isalpha()
        self.startcap, self.endsent, self.spc, self.letter_end = (
            startcap,
            endsent,
            spc,
            letter_end,
        )
        ln = np.diff(self.off)
        first = self.ids[self.off[:-1]]
        cand = np.nonzero((ln >= 40) & (ln <= 260) & startcap[first])[0]
        self.para = []
        for p in cand:
            s = self.off[p]
            seg = self.ids[s : s + 66]
            n = min(len(seg), ln[p])
            e = np.nonzero(endsent[seg[15 : n - 1]] & spc[seg[16:n]])[0]
            if len(e):
                self.para.append((p, 16 + int(e[0])))

    def reset(self):
        """Begins a new document."""
        self.tok = []
        self.w = []
        self.spans = []

    def put(self, ids, w):
        """Adds tokens of weight class w."""
        self.tok.extend(ids)
        self.w.extend([w] * len(ids))

    def turn(self, role, ids, w=W_CTX):
        """Adds a whole message; its content and <|im_end|> get weight class w."""
        self.put(self.roles[role], W_CTX)
        a = len(self.tok)
        self.tok.extend(ids)
        self.tok.append(self.IME)
        self.w.extend([w] * (len(ids) + 1))
        if role == "assistant":
            self.spans.append((a, len(self.tok)))
        self.put(self.nl, W_CTX)

    def fill(self, tpl, v):
        """The tokens of a template with the slots' values."""
        out = []
        for p in tpl:
            out.extend(p if type(p) is list else v[p])
        return out

    def records(self, n, digits=None):
        """n random records: [(values, body, line end, last line's end, name's index)]."""
        rng = self.rng
        lo, hi = (
            (100, 1000)
            if (digits or (3 if self.r.random() < 0.7 else 4)) == 3
            else (1000, 10000)
        )
        nums = rng.permutation(hi - lo)[:n] + lo
        if self.r.random() < 0.25:
            nums.sort()
        things = rng.permutation(len(ADJ) * len(NOUN))[:n]
        col = rng.integers(0, len(COLOUR), n)
        name = rng.integers(0, len(NAME), n)
        price = rng.integers(2, 250, n)
        shelf = rng.integers(1, 100, n)
        ph = rng.integers(0, len(self.rec)) if self.r.random() < 0.75 else None
        phs = rng.integers(0, len(self.rec), n)
        recs = []
        for i in range(n):
            a, b = divmod(int(things[i]), len(NOUN))
            v = dict(
                num=self.num[nums[i]],
                art=self.art[a],
                adj=self.adj[a],
                noun=self.noun[b],
                col=self.col[col[i]],
                price=self.num[price[i]],
                shelf=self.num[shelf[i]],
                name=self.name[name[i]],
            )
            p = self.rec[ph if ph is not None else phs[i]]
            recs.append((v, self.fill(p[0], v), p[1], p[2], int(name[i])))
        self.rs = dict(
            nums=set(nums.tolist()),
            things=set(things.tolist()),
            lo=lo,
            hi=hi,
            ncount=collections.Counter(name.tolist()),
            recs=recs,
        )
        return recs

    def question(self, kinds=None):
        """One question on the records: (kind, question, answer, record index or -1)."""
        r = self.r
        rs = self.rs
        recs = rs["recs"]
        x = r.random()
        k = kinds and r.choice(kinds)
        if k == "absent" or (k is None and (x < 0.06 or not recs)):
            f, kd = r.choice(list(self.Q))
            while True:
                num = r.randrange(rs["lo"], rs["hi"])
                if recs and r.random() < 0.4:  # near miss: one digit off
                    s = list(str(r.choice(list(rs["nums"]))))
                    j = r.randrange(len(s))
                    s[j] = str(r.randrange(1, 10))
                    num = int("".join(s))
                th = r.randrange(len(ADJ) * len(NOUN))
                if num not in rs["nums"] and th not in rs["things"]:
                    break
            a, b = divmod(th, len(NOUN))
            v = dict(num=self.num[num], adj=self.adj[a], noun=self.noun[b])
            return "absent", self.fill(r.choice(self.Q[f, kd]), v), self.absent, -1
        i = r.randrange(len(recs))
        v, body, e, e0, nm = recs[i]
        if k == "repeat" or (k is None and x < 0.13):
            return "repeat", self.fill(r.choice(self.Qr), v), body + e0, i
        if k == "origin" or (k is None and x < 0.23):
            for _ in range(20):
                if rs["ncount"][nm] == 1:
                    return (
                        "origin",
                        self.fill(r.choice(self.Qo), v),
                        self.fill(self.A["origin"], v),
                        i,
                    )
                i = r.randrange(len(recs))
                v, body, e, e0, nm = recs[i]
        f, kd = (
            r.choice(list(self.Q))
            if k in (None, "field", "origin")
            else r.choice([q for q in self.Q if q[1] == k])
        )
        return "field-" + kd, self.fill(r.choice(self.Q[f, kd]), v), self.fill(self.A[f], v), i

    def catalogue(self, L, turns, kinds=None, digits=None):
        """A chat over a catalogue; the whole document has about L tokens."""
        r = self.r
        mix = r.random() < 0.12 and L > 600 and kinds is None
        per_turn = 27
        budget = max(60, L - 40 - turns * per_turn)
        n = max(1, min(900, budget // 20))
        recs = self.records(n, digits)
        self.put(self.roles["system"], W_CTX)
        h = r.choice(self.mixhead if mix else self.head)
        self.put(h, W_CTX)
        used = len(self.tok)
        keep = 0
        fin = None
        for i, (v, body, e, e0, nm) in enumerate(recs):
            if mix and r.random() < 0.3:
                p, _ = r.choice(self.para)
                seg = self.ids[self.off[p] : self.off[p + 1]].tolist()
                if len(self.tok) + len(seg) < budget:
                    self.put(seg, W_CTX)
            if keep and len(self.tok) - used + len(body) + 2 > budget:
                break
            self.tok.extend(body)
            self.tok.extend(e)
            keep = i + 1
            fin = (e, e0)
        if fin[0]:
            del self.tok[-len(fin[0]) :]
        self.tok.extend(fin[1])
        self.w.extend([W_CTX] * (len(self.tok) - len(self.w)))
        self.rs["recs"] = recs[:keep]
        self.rs["nums"] = {
            int("".join(str(self.dig.index([d])) for d in v["num"])) for v, *_ in recs[:keep]
        }
        self.rs["ncount"] = collections.Counter(x[4] for x in recs[:keep])
        self.put([self.IME] + self.nl, W_CTX)
        self.kinds = []
        for _ in range(turns):
            if kinds is None and r.random() < 0.01:
                q, a = r.choice(self.small)
                k = "small"
            else:
                k, q, a, _i = self.question(kinds)
            self.kinds.append(k)
            self.turn("user", q)
            self.turn("assistant", a, W_ANS)

    def passages(self, L, turns):
        """A chat that recites passages from the system prompt; about L tokens."""
        r = self.r
        budget = max(120, L - 30 - turns * 75)
        self.put(self.roles["system"], W_CTX)
        self.put(r.choice(self.phead), W_CTX)
        got = []
        used = set()
        while True:
            p, e = r.choice(self.para)
            if p in used:
                continue
            seg = self.ids[self.off[p] : self.off[p + 1]].tolist()
            if got and len(self.tok) + len(seg) > budget:
                break
            used.add(p)
            got.append((seg, e))
            self.put(seg, W_CTX)
        self.put(self.pfoot, W_CTX)
        self.put([self.IME] + self.nl, W_CTX)
        self.kinds = []
        for _ in range(turns):
            seg, e = r.choice(got)
            n = r.randint(3, min(9, e - 3))
            while n < e - 2 and not (
                self.letter_end[seg[n - 1]]
                and (self.spc[seg[n]] or not self.letter_end[seg[n]])
            ):
                n += 1
            if not self.letter_end[seg[n - 1]]:
                continue
            if not (self.spc[seg[n]] or not self.letter_end[seg[n]]):
                continue
            a, b = r.choice(self.Qp)
            self.turn("user", a + seg[:n] + b)
            self.turn("assistant", seg[:e], W_ANS)
            self.kinds.append("passage")

    def chitchat(self):
        """Greetings, self-description, and stories (book text)."""
        r = self.r
        if r.random() < 0.6:
            self.turn("system", self.sys0)
        self.kinds = []
        for _ in range(r.randint(1, 4)):
            if r.random() < 0.15:
                p = r.randrange(len(self.off) - 40)
                s = self.off[p]
                e = s
                while e - s < r.randint(30, 160):
                    p += 1
                    e = self.off[p]
                seg = self.ids[s:e].tolist()
                while seg and self.t.inv[seg[-1]].endswith("Ċ"):
                    seg.pop()  # drop the last paragraph's end
                if not seg:
                    continue
                self.turn("user", r.choice(self.story))
                self.turn("assistant", seg, W_TEXT)
                self.kinds.append("story")
            else:
                q, a = r.choice(self.small)
                self.turn("user", q)
                self.turn("assistant", a, W_ANS)
                self.kinds.append("small")

    def text(self, L):
        """Book text of L tokens."""
        p = self.r.randrange(len(self.off) - 2)
        s = self.off[p]
        seg = self.ids[s : s + L - 1].tolist()
        self.put([self.EOT] + seg, W_TEXT)

    def doc_(self, Lmax):
        """One chat document of at most Lmax tokens (and 200 more): (tokens, weight classes)."""
        r = self.r
        self.reset()
        # half of the documents near the top of the range, half log-uniform
        L = (
            int(r.uniform(0.6, 1.0) * Lmax)
            if r.random() < 0.5
            else int(math.exp(r.uniform(math.log(160), math.log(Lmax))))
        )
        x = r.random()
        if x < 0.05:
            self.chitchat()
        elif x < 0.19 and L >= 300:
            self.passages(L, max(1, min(r.randint(1, 8), L // 150)))
        else:
            hi = max(1, min(48, L // 60))
            turns = int(math.exp(r.uniform(0, math.log(hi + 0.99)))) if r.random() < 0.4 else hi
            self.catalogue(L, turns)
        if len(self.tok) > min(Lmax + 200, 8192):
            return self.doc_(Lmax)
        return self.tok, self.w

    def batch(self, N, Lmax, chat_share, maxdocs):
        """N packed tokens: (tokens, weight class of each token's target, positions, document
        starts padded with N to maxdocs + 1, longest document)."""
        tok = np.empty(N, np.uint16)
        w = np.zeros(N, np.uint8)
        cu = [0]
        pos = np.empty(N, np.uint16)
        n = 0
        docs = []
        while n < chat_share * N and len(docs) < maxdocs - 40:
            t, ww = self.doc_(Lmax)
            if n + len(t) > N:
                break
            docs.append((t, ww))
            n += len(t)
        while n < N:
            rem = N - n
            Lt = min(
                rem, int(math.exp(self.r.uniform(math.log(256), math.log(max(512, Lmax)))))
            )
            if rem - Lt < 64 or len(docs) >= maxdocs - 8:
                Lt = min(rem, 8192)
            self.reset()
            self.text(Lt)
            docs.append((self.tok[:rem], self.w[:rem]))
            n += len(docs[-1][0])
        i = 0
        for t, ww in docs:
            m = len(t)
            tok[i : i + m] = t
            w[i : i + m - 1] = ww[1:]
            w[i + m - 1] = 0
            pos[i : i + m] = np.arange(m)
            i += m
            cu.append(i)
        cu = np.array(cu + [N] * (maxdocs + 1 - len(cu)), np.int32)
        return tok, w, pos, cu, max(len(t) for t, _ in docs)


def check_round_trips(g, n):
    """Makes n documents; their tokens must be those of their text."""
    t = g.t
    lengths, wrong = [], 0
    for i in range(n):
        tok, w = g.doc_([512, 1024, 2048, 8192][i % 4])
        lengths.append(len(tok))
        assert len(tok) == len(w)
        assert all(tok[end - 1] == g.IME for _, end in g.spans)
        again = t.enc_special(t.dec(tok))
        if again == list(map(int, tok)):
            continue
        wrong += 1
        j = next(k for k in range(min(len(again), len(tok))) if again[k] != tok[k])
        print("mismatch:", g.kinds[:3], repr(t.dec(tok[j - 12 : j + 8])))
    print(
        n,
        "documents,",
        wrong,
        "mismatches, mean length",
        np.mean(lengths),
        "longest",
        max(lengths),
    )


def check(data):
    """Prints whether documents survive decoding and encoding, samples, and the speed."""
    g = Gen(data + "/tokenizer.json", data + "/corpus.npz", 7)
    print("recitable paragraphs", len(g.para))
    check_round_trips(g, 400)
    for make in (lambda: g.catalogue(400, 5), lambda: g.passages(500, 2), g.chitchat):
        g.reset()
        make()
        print("-----", len(g.tok), "tokens")
        print(g.t.dec(g.tok))
    for longest in (512, 2048, 8192):
        begin = time.time()
        classes = np.zeros(len(WTAB))
        for _ in range(6):
            classes += np.bincount(g.batch(65536, longest, 0.7, 384)[1], minlength=len(WTAB))
        rate = 6 * 65536 / (time.time() - begin)
        print("longest", longest, "tokens/s", rate, "weight classes", classes / classes.sum())
