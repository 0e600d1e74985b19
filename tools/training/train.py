"""Training on one CUDA device: worker processes make batches, the schedule follows the clock."""
import collections
import json
import math
import multiprocessing
import os
import queue
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from chats import Gen, W_TEXT, WTAB
from network import CUDA, DT, MAXQ, Model, attend, attn_ref, load_parts, save_parts
from optimizer import Muon

MAXDOCS = 384  # documents in a batch

# The longest document grows by stages: to the next one when answers are right, or at the latest
# when this share of the time has passed.
STAGES = [512, 1024, 2048, 4096, 8192]
STAGE_LATEST = [0.10, 0.20, 0.32, 0.45]
WARM_UP_STEPS = 150
LAST_LR_SHARE = 0.02

# name: (type, default)
OPTIONS = {
    "total": (float, 1000),  # seconds of training that the schedule spans
    "stop": (float, 540),  # seconds from the start of the program at which this call ends
    "used": (float, 0),  # seconds gone before the program started
    "prev": (float, 0),  # seconds of training in earlier calls
    "steps": (int, 1 << 40),
    "init": (str, ""),  # checkpoint to start from
    "seed": (int, 1),
    "N": (int, 65536),  # tokens a step
    "L": (int, 512),  # longest document at first: one of STAGES
    "share": (float, 0.72),  # of chat tokens
    "lr": (float, 0.02),  # of Muon
    "elr": (float, 0.004),  # of AdamW
    "wd": (float, 0.05),  # Muon's weight decay
    "decay": (float, 0.4),  # last share of the time, in which the rates fall
    "workers": (int, 14),
    "abort": (float, 200),  # seconds after which recall must have emerged; 0: never
    "noeval": (bool, False),
    "evdocs": (int, 48),  # documents a length in an evaluation
    "evevery": (float, 90),  # seconds between evaluations
}


def read_options(given):
    unknown = set(given) - set(OPTIONS)
    if unknown:
        sys.exit(f"unknown options: {', '.join(sorted(unknown))}; known: {', '.join(OPTIONS)}")
    return {k: kind(given.get(k, default)) for k, (kind, default) in OPTIONS.items()}


def worker(wid, seed, tokpath, corpus, q, Lmax, share, N, stop):
    """Makes batches until told to stop, or until the parent process is gone."""
    try:
        g = Gen(tokpath, corpus, seed * 1000 + wid)
        up = os.getppid()
        q.cancel_join_thread()
        while not stop.value and os.getppid() == up:
            L = Lmax.value
            b = (L,) + g.batch(N, L, share.value, MAXDOCS)
            while not stop.value and os.getppid() == up:
                try:
                    q.put(b, timeout=1)
                    break
                except queue.Full:
                    pass
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    os._exit(0)


def eval_docs(data, seed, lengths, per, turns):
    """Packed evaluation batches: (L, tokens, positions, document starts, [(begin, end, kind)])."""
    g = Gen(data + "/tokenizer.json", data + "/corpus.npz", seed)
    out = []
    for L in lengths:
        tok, pos, cu, sp = [], [], [0], []
        for i in range(per):
            while True:
                g.reset()
                if i % 8 == 7:
                    g.passages(L, min(turns, 4))
                else:
                    g.catalogue(L, turns)
                if len(g.tok) <= 8192 and g.kinds:
                    break
            b = len(tok)
            sp += [(b + s, b + e, k) for (s, e), k in zip(g.spans, g.kinds)]
            tok += g.tok
            pos += range(len(g.tok))
            cu.append(len(tok))
        out.append((L, np.array(tok), np.array(pos), np.array(cu, np.int32), sp))
    return out


def eval_answers(m, batch, dev):
    """Prints the share of answers whose every token is the most likely one."""
    L, tok, pos, cu, sp = batch
    MAXQ[0] = int(np.diff(cu).max())
    t = torch.from_numpy(tok).to(dev)
    p = torch.from_numpy(pos).to(dev)
    h = m.hidden(t, p, torch.from_numpy(cu).to(dev), eager=True)
    E = m.model.embed_tokens.weight
    best = [F.linear(x, E.to(x.dtype)).argmax(-1) for x in h.split(65536)]
    pr = torch.cat(best).cpu().numpy()
    right = collections.defaultdict(lambda: [0, 0])
    recall = [0, 0]
    for a, b, k in sp:
        ok = bool((pr[a - 1 : b - 1] == tok[a:b]).all())
        right[k][0] += ok
        right[k][1] += 1
        if k != "story" and k != "small":
            recall[0] += ok
            recall[1] += 1
    kinds = " ".join(f"{k}:{v[0] / v[1]:.3f}/{v[1]}" for k, v in sorted(right.items()))
    print(f"  eval L={L} exact {recall[0] / recall[1]:.4f} ({recall[1]})  {kinds}", flush=True)


def eval_text(m, held, dev):
    """Prints the perplexity of the held-out text in windows of 1024 tokens."""
    n = 1024
    ids = held[: len(held) // n * n].astype(np.int64)
    cu = np.arange(0, len(ids) + 1, n).astype(np.int32)
    MAXQ[0] = n
    t = torch.from_numpy(ids).to(dev)
    p = torch.arange(n, device=dev).repeat(len(ids) // n)
    h = m.hidden(t, p, torch.from_numpy(cu).to(dev), eager=True)
    z = F.linear(h, m.model.embed_tokens.weight.to(DT)).float().log_softmax(-1)
    nl = -z[:-1].gather(1, t[1:, None])[:, 0]
    inside = torch.arange(1, len(ids), device=dev) % n != 0
    nll = nl[inside].mean().item()
    print(f"  held-out nll/token {nll:.4f} ppl {math.exp(nll):.2f}", flush=True)


def run_eval(m, sets, held, dev):
    with torch.no_grad():
        for batch in sets:
            eval_answers(m, batch, dev)
        eval_text(m, held, dev)


def head(h, E, tgt, w):
    """Weighted loss of the targets, and sums for the log: answers right, answers, their loss,
    the loss of book text, its tokens."""
    z = F.linear(h, E.to(h.dtype)).float()
    lz = torch.logsumexp(z, -1)
    nll = lz - z.gather(1, tgt[:, None])[:, 0]
    ok = (z.argmax(-1) == tgt).float()
    loss = (nll * w).sum() / w.sum() + 1e-5 * (lz * lz * (w > 0)).mean()
    a = (w == 1.0).float()
    t = (w == WTAB[W_TEXT]).float()
    st = torch.stack([(ok * a).sum(), a.sum(), (nll * a).sum(), (nll * t).sum(), t.sum()])
    return loss, st.detach()


def check_attention(dev):
    """Compares the variable-length attention and its gradients with the plain form."""
    torch.backends.cuda.matmul.allow_tf32 = True
    q, k, v = (torch.randn(700, 4, 64, device=dev, dtype=DT).requires_grad_() for _ in range(3))
    cu = torch.tensor([0, 100, 101, 613, 700, 700, 700], dtype=torch.int32, device=dev)
    MAXQ[0] = 512
    g = torch.randn(700, 4, 64, device=dev, dtype=DT)
    a = torch.autograd.grad(attend(q, k, v, cu), (q, k, v), g)
    b = torch.autograd.grad(attn_ref(q, k, v, cu), (q, k, v), g)
    e = [(attend(q, k, v, cu) - attn_ref(q, k, v, cu)).abs().max().item()]
    e += [(x - y).abs().max().item() for x, y in zip(a, b)]
    print("attention self-test max abs err (out,dq,dk,dv)", e, flush=True)
    assert max(e) < 0.1, e


class Batches:
    """Worker processes and the queue they fill."""

    def __init__(self, data, o):
        ctx = multiprocessing.get_context("fork")
        self.q = ctx.Queue(3 * o["workers"])
        self.Lmax = ctx.Value("i", o["L"])
        self.stop = ctx.Value("i", 0)
        files = (data + "/tokenizer.json", data + "/corpus.npz")
        shared = (self.q, self.Lmax, ctx.Value("d", o["share"]), o["N"], self.stop)
        self.processes = [
            ctx.Process(target=worker, args=(i, o["seed"], *files, *shared), daemon=True)
            for i in range(o["workers"])
        ]
        for p in self.processes:
            p.start()

    def next(self):
        return self.q.get()

    def end(self):
        for p in self.processes:
            p.kill()


class Trainer:
    def __init__(self, data, out, o):
        self.t0 = time.time() - o["used"]
        self.o, self.out = o, out
        self.dev = "cuda" if CUDA else "cpu"
        self.batches = Batches(data, o)
        torch.manual_seed(o["seed"])
        self.m = m = Model().to(self.dev)
        if o["init"]:
            load_parts(m, o["init"])
        n = sum(p.numel() for p in m.parameters())
        print("parameters", n, "device", self.dev, flush=True)
        if CUDA:
            check_attention(self.dev)
        self.make_optimizers()
        self.head = head
        if CUDA:
            import torch._dynamo as dynamo

            dynamo.config.cache_size_limit = 64
            for b in m.model.layers:
                b.compile(dynamic=False)
            self.head = torch.compile(head, dynamic=False)
        self.weights = torch.tensor(WTAB, device=self.dev)
        self.eval_sets = []
        if not o["noeval"]:
            self.eval_sets = eval_docs(data, 999, (1000, 4000, 7000), o["evdocs"], 8)
        self.held = np.load(data + "/corpus.npz")["held"]
        self.step = self.n_tok = 0
        self.sums = torch.zeros(5, device=self.dev)
        self.t_start = None
        self.wait = 0.0
        self.recent = []  # shares of right answer tokens since the stage began
        print(f"start-up {time.time() - self.t0:.1f}s", flush=True)

    def make_optimizers(self):
        """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
        matrices, emb, nrm = [], [], []
        for n, p in self.m.named_parameters():
            (nrm if p.ndim == 1 else emb if "embed" in n else matrices).append(p)
        self.muon = Muon(matrices, wd=self.o["wd"])
        elr = self.o["elr"]
        self.adamw = torch.optim.AdamW(
            [dict(params=emb, lr=elr, base=elr), dict(params=nrm, lr=elr, base=elr)],
            betas=(0.9, 0.95),
            eps=1e-8,
            weight_decay=0.0,
            **(dict(fused=True) if CUDA else {}),
        )

    def start_clock(self):
        """Training time counts from the first batch."""
        self.t_start = self.t_log = self.t_stage = self.t_eval = time.time()
        self.wait = 0.0

    def trained(self):
        return time.time() - self.t_start

    def lr_scale(self, f):
        """Warm-up by steps, then constant, then falling with the share f of the time gone."""
        decay = self.o["decay"]
        fall = 1.0 if f < 1 - decay else max(LAST_LR_SHARE, (1 - f) / decay)
        return min(1.0, (self.step + 1) / WARM_UP_STEPS) * fall

    def train_step(self, batch, scale):
        _, tok, w, pos, cu, longest = batch
        MAXQ[0] = 1 << max(8, (longest - 1).bit_length())
        to = lambda a: torch.from_numpy(a).to(self.dev, non_blocking=True)
        tk = to(tok.astype(np.int32)).long()
        h = self.m.hidden(tk, to(pos.astype(np.int32)).long(), to(cu))
        wt = self.weights[to(w).long()]
        loss, st = self.head(h, self.m.model.embed_tokens.weight, torch.roll(tk, -1), wt)
        loss.backward()
        self.muon.step(self.o["lr"] * scale)
        for g in self.adamw.param_groups:
            g["lr"] = g["base"] * scale
        self.adamw.step()
        for p in self.m.parameters():
            p.grad = None
        self.sums += st
        self.step += 1
        self.n_tok += self.o["N"]

    def log(self, L, f, scale):
        """Prints now and then; returns the share of answer tokens that were right."""
        a = self.sums.tolist()
        self.sums.zero_()
        took = time.time() - self.t_log
        self.t_log = time.time()
        right = a[0] / max(1, a[1])
        if self.step % 250 == 0 or self.step <= 100 or took > 20:
            steps = 47 if self.step == 50 else 50 if self.step > 3 else 3
            print(
                f"step {self.step} t {time.time() - self.t0:.0f}s f {f:.3f} L {L} "
                f"lr {self.o['lr'] * scale:.4f} ans-acc {right:.4f} "
                f"ans-nll {a[2] / max(1, a[1]):.3f} text-nll {a[3] / max(1, a[4]):.3f} "
                f"ms/step {took / steps * 1e3:.1f} wait {self.wait:.2f}s",
                flush=True,
            )
        self.wait = 0.0
        if not math.isfinite(a[2]):
            print("loss is not finite")
            self.batches.stop.value = 1
            sys.exit(3)
        return right

    def next_stage(self, L, f, right):
        """Lengthens the documents when the answers have been right for a while, or it is time."""
        self.recent.append(right)
        Lmax = self.batches.Lmax
        i = STAGES.index(Lmax.value)
        if L != Lmax.value or i == len(STAGES) - 1 or self.step <= 100:
            return
        learned = len(self.recent) >= 3 and min(self.recent[-3:]) > 0.975
        if not (learned and time.time() - self.t_stage > 8) and f <= STAGE_LATEST[i]:
            return
        Lmax.value = STAGES[i + 1]
        self.t_stage = time.time()
        self.recent = []
        print(
            f"== stage {STAGES[i + 1]} at step {self.step}, {time.time() - self.t0:.0f}s, "
            f"ans-acc {right:.4f}",
            flush=True,
        )

    def stop_if_hopeless(self, right):
        o = self.o
        if not o["abort"] or o["init"] or self.trained() <= o["abort"]:
            return
        if self.batches.Lmax.value <= 2048 and right < 0.6:
            print("abort: recall has not emerged", flush=True)
            save_parts(self.m, self.out + "/ckpt")
            self.batches.stop.value = 1
            os._exit(4)

    def evaluate(self):
        self.t_eval = time.time()
        print(f"-- evaluation at step {self.step} tokens {self.n_tok / 1e6:.0f}M")
        run_eval(self.m, self.eval_sets, self.held, self.dev)
        save_parts(self.m, self.out + "/ckpt")
        self.t_log = time.time()

    def run(self):
        o = self.o
        while True:
            asked = time.time()
            batch = self.batches.next()
            L = batch[0]
            self.wait += time.time() - asked
            if self.t_start is None:
                self.start_clock()
            f = (o["prev"] + self.trained()) / o["total"]
            if time.time() - self.t0 > o["stop"] or f >= 1.0 or self.step >= o["steps"]:
                break
            scale = self.lr_scale(f)
            self.train_step(batch, scale)
            if self.step != 3 and self.step % 50 != 0:
                continue
            right = self.log(L, f, scale)
            self.next_stage(L, f, right)
            self.stop_if_hopeless(right)
            if self.eval_sets and time.time() - self.t_eval > o["evevery"]:
                self.evaluate()
        self.finish(f)

    def finish(self, gone):
        longest = self.batches.Lmax.value
        print(
            f"-- end: steps {self.step} tokens {self.n_tok / 1e6:.1f}M "
            f"train-seconds {self.trained():.1f} f {gone:.3f} L {longest}",
            flush=True,
        )
        self.batches.stop.value = 1
        save_parts(self.m, self.out + "/ckpt")
        state = dict(
            prev=self.o["prev"] + self.trained(),
            steps=self.step,
            tokens=self.n_tok,
            L=longest,
            opts=self.o,
        )
        with open(self.out + "/ckpt.json", "w") as file:
            json.dump(state, file)
        if self.eval_sets:
            run_eval(self.m, self.eval_sets, self.held, self.dev)
        sys.stdout.flush()
        self.batches.end()


def train(data, out, given):
    """Trains on DATA's tokenizer and corpus; writes OUT/ckpt.0.npz, ckpt.1.npz and ckpt.json."""
    Trainer(data, out, read_options(given)).run()
    os._exit(0)  # workers may hold the queue's feeder threads
