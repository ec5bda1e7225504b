"""Transfers between the ranks of a plan over ``torch.distributed``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ._program import Message


class Links:
    """Starts and awaits transfers, each on the channel of its link.

    With NCCL each direction between two ranks has a communicator and a stream: a receive that waits holds up nothing but
    what follows on its own link, which is what the plan's program is checked for. With gloo a tag tells messages apart.
    """

    def __init__(self, group: dist.ProcessGroup | None, owner: dict[tuple[int, int], int], stages: int) -> None:
        self._group = group
        self._owner = owner
        self._tags = 2 * stages
        self.rank = dist.get_rank(group)
        ranks = range(dist.get_world_size(group))
        self._global = [dist.get_global_rank(group, rank) if group is not None else rank for rank in ranks]
        self._channels: dict[tuple[int, int], dist.ProcessGroup | None] = {}
        self._own_channels = dist.get_backend(group) == "nccl"
        used = {(owner[stage, k], owner[stage + 1, k]) for stage, k in owner if (stage + 1, k) in owner}
        used |= {(there, here) for here, there in used}
        # Where the group is all processes, all of them make every channel, in one order; else only its members do.
        is_whole = dist.get_world_size(group) == dist.get_world_size()
        for here, there in sorted(used):
            if here == there or not (self.rank in (here, there) or is_whole and self._own_channels):
                continue
            self._channels[here, there] = group
            if self._own_channels:
                members = [self._global[here], self._global[there]]
                self._channels[here, there] = dist.new_group(members, use_local_synchronization=not is_whole)

    def global_rank(self, rank: int) -> int:
        """The rank of all processes that is ``rank`` of the pipeline."""
        return self._global[rank]

    def peer(self, message: Message) -> int:
        """The rank at the other end."""
        return self._owner[message.peer_stage, message.microbatch]

    def copy(self, source: int, target: int, tensors: list[torch.Tensor], tag: int) -> None:
        """Copies ``tensors`` of rank ``source`` to those of rank ``target``; both call it."""
        run, peer = (dist.isend, target) if self.rank == source else (dist.irecv, source)
        for tensor in tensors:
            flat = tensor.contiguous()
            for work in dist.batch_isend_irecv([dist.P2POp(run, flat, self._global[peer], self._group, tag)]):
                work.wait()
            if self.rank == target:
                tensor.copy_(flat)

    def sum_with(self, peers: list[int], tensor: torch.Tensor, tag: int) -> None:
        """Adds what ranks ``peers`` have to ``tensor``; all of them call it, and have the same bits then."""
        parts = {rank: torch.empty_like(tensor) for rank in peers}
        ops = []
        for rank in sorted(peers):
            ops += [dist.P2POp(dist.isend, tensor, self._global[rank], self._group, tag),
                    dist.P2POp(dist.irecv, parts[rank], self._global[rank], self._group, tag)]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        parts[self.rank] = tensor.clone()
        tensor.zero_()
        for _, part in sorted(parts.items()):
            tensor += part

    def start(self, messages: list[tuple[Message, list[torch.Tensor]]]) -> list[list[dist.Work]]:
        """Starts ``messages`` together. Answers what each of them waits for."""
        works: list[list[dist.Work]] = [[] for _ in messages]
        by_channel: dict[tuple[int, int], list[int]] = {}
        for at, (message, _) in enumerate(messages):
            peer = self.peer(message)
            link = (self.rank, peer) if message.is_send else (peer, self.rank)
            by_channel.setdefault(link, []).append(at)
        for link, places in by_channel.items():
            ops = []
            for at in places:
                message, tensors = messages[at]
                peer = self._global[self.peer(message)]
                tag = message.microbatch * self._tags + 2 * message.source_stage + (message.payload == "B")
                run = dist.isend if message.is_send else dist.irecv
                ops += [(at, dist.P2POp(run, tensor, peer, self._channels[link], tag)) for tensor in tensors]
            if not ops:
                continue
            begun = dist.batch_isend_irecv([op for _, op in ops])
            if len(begun) == len(ops):
                for (at, _), work in zip(ops, begun):
                    works[at].append(work)
            else:  # one work for all of them, as NCCL's groups have
                for at in places:
                    works[at] += begun
        return works
