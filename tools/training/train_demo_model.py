#!/usr/bin/env python3
"""train_demo_model.py - makes sheaf-demo, a tiny Qwen3-architecture chat model whose main skill is
exact recall from a long context, so that a corrupted, stale or mis-ordered KV block gives a wrong
answer.

  tokenizer  BOOKS_DIR DATA_DIR                  train the byte-level BPE of 4096 entries
  corpus     BOOKS_DIR DATA_DIR                  tokenize the books and DATA_DIR/heldout.txt
  check      DATA_DIR                            check the maker of chats against the tokenizer
  train      DATA_DIR OUT_DIR [name=value ...]   train (train.py lists the options)
  export     CHECKPOINT MODEL_DIR DATA_DIR       write model.safetensors, config.json and the rest

BOOKS_DIR: what prep_text.py wrote. CHECKPOINT: OUT_DIR/ckpt.
Needs numpy and regex; `train` and `export` torch (2.9 or later), and `train` a CUDA device.
"""
import sys

ARGUMENTS = dict(tokenizer=2, corpus=2, check=1, train=2, export=3)


def main(arguments):
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    options = dict(x.split("=", 1) for x in rest if "=" in x)
    paths = [x for x in rest if "=" not in x]
    if ARGUMENTS.get(command) != len(paths) or (options and command != "train"):
        sys.exit(__doc__)
    # torch is imported only by the commands that need it
    if command == "tokenizer":
        from tokenizer import make_tokenizer

        make_tokenizer(*paths)
    elif command == "corpus":
        from tokenizer import make_corpus

        make_corpus(*paths)
    elif command == "check":
        from chats import check

        check(*paths)
    elif command == "train":
        from train import train

        train(*paths, options)
    else:
        from export import export

        export(*paths)


if __name__ == "__main__":
    main(sys.argv[1:])
