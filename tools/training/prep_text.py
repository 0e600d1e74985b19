#!/usr/bin/env python3
"""prep_text.py CLONES_DIR OUT_DIR - books from clones of GITenberg repositories, cleaned.

CLONES_DIR holds folders GITenberg+NAME_NUMBER/repo (bare or not). Writes OUT_DIR/books/NUMBER.txt
and OUT_DIR/sources.json. Headers, licence texts, transcribers' notes and Gutenberg's name are taken
out, quotes made plain, lines joined into paragraphs.
"""
import glob
import json
import os
import re
import subprocess
import sys
import unicodedata

from tokenizer import HELD_OUT

LEFT_OUT = "2638"  # The Idiot: its translator's dates are uncertain
EDITORS_NOTE = ("5231", "4274")  # begin with a modern note of two paragraphs
SCANNERS_LINES = ("345", "2600")  # carry page marks and credits inside

START = r"\*\*\*\s*START OF (?:THIS|THE) PROJECT GUTENBERG[^\n]*\n(?:[^\n]*\*\*\*\n)?"
SMALL_PRINT = r"\*END\*?\s*THE SMALL PRINT[^\n]*\n"
END = (
    r"(\*\*\*\s*END OF (?:THIS|THE) PROJECT GUTENBERG|End of (?:the |this )?Project Gutenberg)"
)
NOTICE = (
    r"project gutenberg|gutenberg-tm|gutenberg\.(org|net)|e-?text|produced by|transcrib|proofread"
    r"|\[illustration|ascii|www\."
)
PLAIN = {
    "\u2019": "'",
    "\u2018": "'",
    "\u201c": '"',
    "\u201d": '"',
    "\u2014": "--",
    "\u2013": "-",
    "\u2026": "...",
    "\u00a0": " ",
    "\ufeff": "",
    "_": "",
}


def git(repo, *arguments):
    return subprocess.run(["git", "--git-dir", repo, *arguments], capture_output=True)


def read_book(repo, number):
    """(file name, bytes): the best encoding that the repository has."""
    for name in (number + "-0.txt", number + "-8.txt", number + ".txt"):
        r = git(repo, "show", "HEAD:" + name)
        if r.returncode == 0 and len(r.stdout) > 10000:
            return name, r.stdout
    sys.exit(f"{repo}: no text of book {number}")


def decode(raw):
    try:
        t = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        t = raw.decode("cp1252", errors="replace")
    return t.replace("\r\n", "\n").replace("\r", "\n")


def cut_frame(t, where):
    """The text between Gutenberg's header and footer."""
    m = re.search(START, t) or re.search(SMALL_PRINT, t)
    if m:
        t = t[m.end() :]
    else:
        print("no start mark:", where)
    m = re.search(END, t, re.I)
    if m:
        t = t[: m.start()]
    else:
        print("no end mark:", where)
    return t


def clean_paragraph(p):
    """A paragraph on one line, verse on its own lines; empty when it is not the author's."""
    p = p.strip("\n")
    if not p.strip() or re.search(NOTICE, p, re.I):
        return ""
    lines = [line.strip() for line in p.split("\n")]
    verse = 2 <= len(lines) < 40 and max(map(len, lines)) <= 48
    q = ("\n" if verse else " ").join(lines)
    q = re.sub(r"[ \t]+", " ", q).strip()
    q = re.sub(r"(\* ?){3,}", "* * *", q)
    return q if sum(c.isalpha() for c in q) >= 0.5 * len(q) else ""


def clean(t, number):
    t = unicodedata.normalize("NFC", t)
    for a, b in PLAIN.items():
        t = t.replace(a, b)
    paragraphs = [q for q in map(clean_paragraph, re.split(r"\n\s*\n", t)) if q]
    if number in EDITORS_NOTE:
        paragraphs = paragraphs[2:]
    body = "\n\n".join(paragraphs)
    if number in SCANNERS_LINES:
        credits = ("Copyright", "An Anonymous Volunteer")
        kept = [x for x in body.split("\n") if not (x.startswith(credits) or "{pg " in x)]
        body = "\n".join(kept)
    return body


def main(clones, out):
    os.makedirs(out + "/books", exist_ok=True)
    sources = []
    for folder in sorted(glob.glob(clones + "/GITenberg+*")):
        repo = folder + "/repo"
        if os.path.isdir(repo + "/.git"):
            repo += "/.git"
        number = folder.rsplit("_", 1)[1]
        if number == LEFT_OUT:
            continue
        name, raw = read_book(repo, number)
        commit = git(repo, "rev-parse", "HEAD").stdout.decode().strip()
        body = clean(cut_frame(decode(raw), folder), number)
        with open(f"{out}/books/{number}.txt", "w", encoding="utf-8") as f:
            f.write(body)
        sources.append(
            dict(
                repo="GITenberg/" + os.path.basename(folder).split("+", 1)[1],
                file=name,
                commit=commit,
                gutenberg=number,
                chars=len(body),
                held_out=number in HELD_OUT,
            )
        )
        print(number, name, len(raw), "bytes,", len(body), "characters kept")
    with open(out + "/sources.json", "w", encoding="utf-8") as f:
        json.dump(sources, f, indent=1)
    print(sum(s["chars"] for s in sources), "characters")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
