"""Muon, for the matrices: momentum made orthogonal by Newton-Schulz steps."""
import collections

import torch

from network import CUDA


def ns5(G):
    X = G.bfloat16() if CUDA else G
    tr = X.shape[-2] > X.shape[-1]
    if tr:
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    for a, b, c in (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ):
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return (X.mT if tr else X).float()


class Muon:
    def __init__(self, params, mom=0.95, wd=0.05):
        g = collections.defaultdict(list)
        for p in params:
            g[tuple(p.shape)].append(p)
        self.g = []
        self.mom = mom
        self.wd = wd
        for sh, ps in g.items():
            P = torch.stack([p.data for p in ps])
            for j, p in enumerate(ps):
                p.data = P[j]
            self.g.append((ps, P, torch.zeros_like(P), max(1.0, sh[0] / sh[1]) ** 0.5))

    @torch.no_grad()
    def step(self, lr):
        for ps, P, M, sc in self.g:
            G = torch.stack([p.grad for p in ps]).float()
            M.lerp_(G, 1 - self.mom)
            U = ns5(G.lerp(M, self.mom))
            P.mul_(1 - lr * self.wd)
            P.add_(U, alpha=-lr * sc)
