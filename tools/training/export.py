"""A checkpoint as a Hugging Face directory."""
import json
import os
import shutil
import struct

import torch

from bpe import VOCAB
from network import CFG, Model, load_parts


def export(ckpt, hf, data):
    """Writes the checkpoint as a Hugging Face directory, with the tokenizer's files of DATA."""
    os.makedirs(hf, exist_ok=True)
    m = Model()
    load_parts(m, ckpt)
    c = CFG
    sd = {k: v.detach().float().to(torch.bfloat16) for k, v in m.state_dict().items()}
    hdr = {}
    o = 0
    blobs = []
    for k in sorted(sd):
        b = sd[k].contiguous().view(torch.int16).numpy().tobytes()
        hdr[k] = dict(dtype="BF16", shape=list(sd[k].shape), data_offsets=[o, o + len(b)])
        o += len(b)
        blobs.append(b)
    hdr["__metadata__"] = dict(format="pt")
    h = json.dumps(hdr, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(hf + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(h)))
        f.write(h)
        for b in blobs:
            f.write(b)
    im_end = VOCAB - 1
    eot = VOCAB - 3
    json.dump(
        dict(
            architectures=["Qwen3ForCausalLM"],
            attention_bias=False,
            attention_dropout=0.0,
            bos_token_id=eot,
            eos_token_id=im_end,
            head_dim=c["hd"],
            hidden_act="silu",
            hidden_size=c["hidden"],
            initializer_range=0.02,
            intermediate_size=c["ffn"],
            max_position_embeddings=c["maxpos"],
            max_window_layers=c["layers"],
            model_type="qwen3",
            num_attention_heads=c["heads"],
            num_hidden_layers=c["layers"],
            num_key_value_heads=c["kv"],
            pad_token_id=eot,
            rms_norm_eps=c["eps"],
            rope_scaling=None,
            rope_theta=c["theta"],
            sliding_window=None,
            tie_word_embeddings=True,
            torch_dtype="bfloat16",
            transformers_version="4.51.0",
            use_cache=True,
            use_sliding_window=False,
            vocab_size=c["vocab"],
        ),
        open(hf + "/config.json", "w"),
        indent=1,
    )
    json.dump(
        dict(
            do_sample=False,
            eos_token_id=[im_end, eot],
            pad_token_id=eot,
            transformers_version="4.51.0",
        ),
        open(hf + "/generation_config.json", "w"),
        indent=1,
    )
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(data + "/" + f, hf + "/" + f)
    print("exported", os.path.getsize(hf + "/model.safetensors"))
