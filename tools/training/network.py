"""The network in plain torch, with the parameter names of Hugging Face's Qwen3, and its
checkpoints.
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from bpe import VOCAB

CFG = dict(
    hidden=256,
    layers=8,
    heads=4,
    kv=2,
    hd=64,
    ffn=512,
    vocab=VOCAB,
    theta=1e6,
    eps=1e-6,
    maxpos=8192,
)
MAXQ = [8192]  # longest document of the current batch (read inside the opaque op)

CUDA = torch.cuda.is_available()
DT = torch.bfloat16 if CUDA else torch.float32


def attn_ref(q, k, v, cu):
    """Causal attention inside each document; q, k, v: [tokens, heads, dim], cu: document starts."""
    out = torch.zeros_like(q)
    b = cu.tolist()
    for s, e in zip(b, b[1:]):
        if e <= s:
            continue
        a = torch.einsum("qhd,khd->hqk", q[s:e].float(), k[s:e].float()) * (q.shape[-1] ** -0.5)
        m = torch.ones(e - s, e - s, dtype=torch.bool, device=q.device).tril()
        out[s:e] = torch.einsum(
            "hqk,khd->qhd", a.masked_fill(~m, -1e30).softmax(-1), v[s:e].float()
        ).to(q.dtype)
    return out


if CUDA:

    @torch.library.custom_op("sheaf::attn_fwd", mutates_args=())
    def attn_fwd(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        r = torch.ops.aten._flash_attention_forward(
            q, k, v, cu, cu, MAXQ[0], MAXQ[0], 0.0, True, False, scale=q.shape[-1] ** -0.5
        )
        return r[0], r[1]

    @attn_fwd.register_fake
    def _(q, k, v, cu):
        return torch.empty_like(q), torch.empty(
            (q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device
        )

    @torch.library.custom_op("sheaf::attn_bwd", mutates_args=())
    def attn_bwd(
        g: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        cu: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = torch.zeros(2, dtype=torch.uint64, device=q.device)
        u = torch.zeros((), dtype=torch.uint64, device=q.device)
        return torch.ops.aten._flash_attention_backward(
            g.contiguous(),
            q,
            k,
            v,
            o,
            lse,
            cu,
            cu,
            MAXQ[0],
            MAXQ[0],
            0.0,
            True,
            z,
            u,
            scale=q.shape[-1] ** -0.5,
        )

    @attn_bwd.register_fake
    def _(g, q, k, v, o, lse, cu):
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    def _setup(ctx, inputs, output):
        q, k, v, cu = inputs
        o, lse = output
        ctx.save_for_backward(q, k, v, o, lse, cu)

    def _back(ctx, g, _glse):
        q, k, v, o, lse, cu = ctx.saved_tensors
        dq, dk, dv = torch.ops.sheaf.attn_bwd(g, q, k, v, o, lse, cu)
        return dq, dk, dv, None

    attn_fwd.register_autograd(_back, setup_context=_setup)

    def attend(q, k, v, cu):
        return torch.ops.sheaf.attn_fwd(q, k, v, cu)[0]

else:
    attend = attn_ref


class Norm(nn.Module):
    def __init__(self, n, init=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((n,), float(init)))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + CFG["eps"])
        return (y * self.weight).to(x.dtype)


class Lin(nn.Module):
    def __init__(self, i, o, std):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) * std)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


def rope(x, cos, sin):
    h = x.shape[-1] // 2
    y = x.float()
    return (y * cos + torch.cat((-y[..., h:], y[..., :h]), -1) * sin).to(x.dtype)


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        c = CFG
        d = c["hidden"]
        s = 0.5 * d**-0.5
        self.q_proj = Lin(d, c["heads"] * c["hd"], s)
        self.k_proj = Lin(d, c["kv"] * c["hd"], s)
        self.v_proj = Lin(d, c["kv"] * c["hd"], s)
        self.o_proj = Lin(c["heads"] * c["hd"], d, 0.0)
        self.q_norm = Norm(c["hd"], 1.4)
        self.k_norm = Norm(c["hd"], 1.4)

    def forward(self, x, cos, sin, cu):
        c = CFG
        n = x.shape[0]
        rep = c["heads"] // c["kv"]
        q = rope(self.q_norm(self.q_proj(x).view(n, c["heads"], c["hd"])), cos, sin)
        k = rope(self.k_norm(self.k_proj(x).view(n, c["kv"], c["hd"])), cos, sin)
        v = self.v_proj(x).view(n, c["kv"], c["hd"])
        k = k.repeat_interleave(rep, 1)
        v = v.repeat_interleave(rep, 1)
        return self.o_proj(attend(q, k, v, cu).reshape(n, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        c = CFG
        d = c["hidden"]
        s = 0.5 * d**-0.5
        self.gate_proj = Lin(d, c["ffn"], s)
        self.up_proj = Lin(d, c["ffn"], s)
        self.down_proj = Lin(c["ffn"], d, 0.0)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d = CFG["hidden"]
        self.input_layernorm = Norm(d)
        self.self_attn = Attn()
        self.post_attention_layernorm = Norm(d)
        self.mlp = Mlp()

    def forward(self, x, cos, sin, cu):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cu)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        c = CFG
        self.embed_tokens = nn.Embedding(c["vocab"], c["hidden"])
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Block() for _ in range(c["layers"]))
        self.norm = Norm(c["hidden"])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Body()
        c = CFG
        inv = c["theta"] ** (-torch.arange(0, c["hd"], 2, dtype=torch.float64) / c["hd"])
        f = torch.arange(c["maxpos"] + 8, dtype=torch.float64)[:, None] * inv
        f = torch.cat((f, f), -1)
        self.register_buffer("cos", f.cos().float(), persistent=False)
        self.register_buffer("sin", f.sin().float(), persistent=False)
        self.blocks = None

    def hidden(self, tok, pos, cu, eager=False):
        x = F.embedding(tok, self.model.embed_tokens.weight).to(DT)
        cos = self.cos[pos][:, None]
        sin = self.sin[pos][:, None]
        for b in self.model.layers:
            x = (b.forward if eager else b)(x, cos, sin, cu)
        return self.model.norm(x)


def save_parts(m, path):
    sd = {k: v.detach().half().cpu().numpy() for k, v in m.state_dict().items()}
    ks = sorted(sd)
    half = sum(sd[k].size for k in ks) / 2
    a = []
    n = 0
    parts = [{}, {}]
    for k in ks:
        parts[0 if n < half else 1][k] = sd[k]
        n += sd[k].size
    for i in (0, 1):
        np.savez(f"{path}.{i}.npz", **parts[i])


def load_parts(m, path):
    sd = {}
    for i in (0, 1):
        z = np.load(f"{path}.{i}.npz")
        for k in z.files:
            sd[k] = torch.from_numpy(z[k].astype(np.float32))
    m.load_state_dict(sd, strict=True)
