#!/usr/bin/env python3
"""make_evalset.py DATA_DIR OUT.jsonl - 300 evaluation chats on fresh random catalogues.

200 of group "own", each on a catalogue or passages of its own, 500 to 7,500 tokens; and 100 of
group "shared", which share one system prompt of about 3,700 tokens.
"""
import collections
import json
import random
import sys

from chats import Gen

MIX = ["num"] * 4 + ["nam"] * 4 + ["origin"] + ["repeat"] + ["absent"]
N_OWN, N_SHARED = 200, 100


def parse(tok, ids):
    """A document's messages."""
    out = []
    for part in tok.dec(ids).split("<|im_start|>")[1:]:
        role, rest = part.split("\n", 1)
        out.append(dict(role=role, content=rest.split("<|im_end|>")[0]))
    return out


def make_row(tok, index, messages, kind, group):
    """A line of the file: the last message is what the model must answer."""
    expected = messages[-1]["content"]
    messages = messages[:-1]
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    n = len(tok.enc_special(text + "<|im_start|>assistant\n"))
    assert 500 <= n <= 7600, n
    return dict(
        id=index,
        group=group,
        kind=kind,
        prompt_tokens=n,
        messages=messages,
        expected=expected,
        expected_tokens=len(tok.enc(expected)) + 1,
    )


def own_chats(g, r):
    """Contexts of 500 to 7,500 tokens, one to four turns."""
    rows = []
    while len(rows) < N_OWN:
        L = int(620 + (7450 - 620) * ((len(rows) * 37 % 200) / 199))
        turns = r.choice([1, 1, 1, 2, 3, 4])
        g.reset()
        if len(rows) % 12 == 11:
            g.passages(L, min(turns, 2))
        else:
            g.catalogue(L, turns, MIX)
        if not g.kinds or len(g.tok) > 7600 or g.spans[-1][0] < 500:
            r.random()
            continue
        rows.append(make_row(g.t, len(rows), parse(g.t, g.tok), g.kinds[-1], "own"))
    return rows


def shared_chats(g, first):
    while True:
        g.reset()
        g.catalogue(3700 + 40 + 110 * 27, 110, MIX, 3)
        messages = parse(g.t, g.tok)
        n = len(g.t.enc(messages[0]["content"]))
        if 3650 <= n <= 3750:
            break
    turns = [
        (messages[k], messages[k + 1], g.kinds[(k - 1) // 2])
        for k in range(1, len(messages) - 1, 2)
    ]
    rows = []
    for j in range(N_SHARED):
        question, answer, kind = turns[j]
        earlier = list(turns[100 + j % 10][:2]) if j % 4 == 3 else []
        chat = [messages[0], *earlier, question, answer]
        rows.append(make_row(g.t, first + j, chat, kind, "shared"))
    return rows, n


def main(data, out):
    g = Gen(data + "/tokenizer.json", data + "/corpus.npz", 424242)
    rows = own_chats(g, random.Random(5))
    shared, n_system = shared_chats(g, len(rows))
    rows += shared
    with open(out, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    sizes = sorted(x["prompt_tokens"] for x in rows)
    print(len(rows), "chats", dict(collections.Counter(x["kind"] for x in rows)))
    print("prompt tokens", sizes[0], "to", sizes[-1], "shared system prompt", n_system)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
