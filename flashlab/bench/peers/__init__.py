"""What is compared, found at run time. A peer that is absent, or cannot do a case, says why.

A peer is an object with

    name, title         as the record and as the table has it
    role                "ours"; "rival": ranked against us; "variant": ours in another form, not ranked; "floor": less work
    kinds               which of prefill, train, decode it can do
    compiles            whether its first call of a shape may wait for a compiler
    version()           of the library behind it
    absent()            why it is not here at all, or None
    refuses(case)       why it does not do this case, or None
    prepare(case, inputs) -> Runner      whose call returns o, or (o, dq, dk, dv)
"""

from typing import Protocol

from flashlab.bench.cases import Case
from flashlab.bench.inputs import Inputs
from flashlab.bench.timing import Runner


class Refused(RuntimeError):
    """A peer ran, and not in the way it should have: its time would mean nothing."""


class Peer(Protocol):
    name: str
    title: str
    role: str
    kinds: tuple[str, ...]
    compiles: bool

    def version(self) -> str | None: ...

    def absent(self) -> str | None: ...

    def refuses(self, case: Case) -> str | None: ...

    def prepare(self, case: Case, inputs: Inputs) -> Runner: ...


def all_peers() -> list[Peer]:
    """Every peer there is code for, ours first, installed or not."""
    from flashlab.bench.peers import installed, ours, torch_flex, torch_sdpa

    return [*ours.PEERS, *torch_sdpa.PEERS, torch_flex.Flex(), *installed.PEERS]


def choose(kind: str, names: list[str] | None = None) -> list[Peer]:
    """The peers that do a kind of case; of those the named ones, and always ours. Raises ValueError for an unknown name."""
    able = [peer for peer in all_peers() if kind in peer.kinds]
    known = [peer.name for peer in able]
    for name in names or ():
        if name not in known:
            raise ValueError(f"peer {name!r}: must be one of {', '.join(known)}")
    return [peer for peer in able if names is None or peer.name in names or peer.role == "ours"]


def differentiate(o, q, k, v, do):
    """(o, dq, dk, dv) of an output that autograd knows."""
    import torch

    return (o.detach(), *torch.autograd.grad(o, (q, k, v), do))


def leaves(*tensors):
    """The same memory as leaves that want gradients."""
    return tuple(tensor.detach().requires_grad_() for tensor in tensors)
