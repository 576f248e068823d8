"""All collectives, in place and out of place, with NumPy as the oracle. Every rank can compute the inputs of all."""

import numpy as np

import weftlink

TYPES = ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
LENGTHS = [1, 7, 1000, 50_000]


def given(rank, length, dtype):
    """The input of a rank: small whole numbers, so that sums are exact in any order."""
    return ((np.arange(length) * 3 + rank * 5) % 7 + 1).astype(dtype)


def same(found, expected, what):
    assert np.array_equal(np.asarray(found), expected), f"{what}: {found} is not {expected}"


def main():
    with weftlink.init() as comm:
        for dtype in TYPES:
            reductions(comm, dtype, 7)
        for length in LENGTHS:
            reductions(comm, "float32", length)
            moves(comm, length)
        uneven(comm)
        named_reductions(comm)
        messages(comm)
        comm.barrier()


def reductions(comm, dtype, length):
    n, me = comm.size, comm.rank
    all_given = [given(rank, length, dtype) for rank in range(n)]
    total = sum(all_given[1:], all_given[0].copy())
    mine = all_given[me].copy()
    same(comm.all_reduce(mine), total, f"all_reduce of {dtype} in place")
    out = np.empty_like(mine)
    assert comm.all_reduce(all_given[me], out=out) is out
    same(out, total, f"all_reduce of {dtype}")
    for root in {0, n - 1}:
        mine = all_given[me].copy()
        result = comm.reduce(mine, root=root)
        same(mine, total if me == root else all_given[me], f"reduce of {dtype} to {root}")
        assert (result is mine) == (me == root)
    prefix = sum(all_given[1 : me + 1], all_given[0].copy())
    same(comm.scan(all_given[me].copy()), prefix, f"scan of {dtype}")
    before = comm.exclusive_scan(all_given[me].copy())
    if me:
        same(before, sum(all_given[1:me], all_given[0].copy()), f"exclusive_scan of {dtype}")
    blocks = [given(rank, length * n, dtype) for rank in range(n)]
    total = sum(blocks[1:], blocks[0].copy())[me * length :][:length]
    same(comm.reduce_scatter(blocks[me], out=np.empty(length, dtype)), total, f"reduce_scatter of {dtype}")


def moves(comm, length):
    n, me = comm.size, comm.rank
    all_given = [given(rank, length, "int64") for rank in range(n)]
    gathered = np.concatenate(all_given)
    for root in {0, n - 1}:
        same(comm.broadcast(all_given[me].copy(), root=root), all_given[root], "broadcast")
        out = np.zeros(length * n, "int64")
        comm.gather(all_given[me], root=root, out=out if me == root else None)
        same(out, gathered if me == root else 0 * gathered, "gather")
        out = np.empty(length, "int64")
        comm.scatter(gathered if me == root else None, root=root, out=out)
        same(out, all_given[me], "scatter")
    same(comm.all_gather(all_given[me], out=np.empty_like(gathered)), gathered, "all_gather")
    whole = np.zeros((n, length), "int64")
    whole[me] = all_given[me]
    same(comm.all_gather(whole).ravel(), gathered, "all_gather in place")
    blocks = np.stack([np.full(length, me * n + to) for to in range(n)])
    expected = np.stack([np.full(length, source * n + me) for source in range(n)])
    same(comm.all_to_all(blocks, out=np.empty_like(blocks)), expected, "all_to_all")
    same(comm.all_to_all(blocks), expected, "all_to_all in place")


def uneven(comm):
    n, me = comm.size, comm.rank
    counts = [3 * rank + 1 for rank in range(n)]
    all_given = [given(rank, count, "float32") for rank, count in enumerate(counts)]
    gathered = np.concatenate(all_given)
    same(comm.all_gather(all_given[me], out=np.empty_like(gathered), counts=counts), gathered, "uneven all_gather")
    out = np.zeros_like(gathered)
    comm.gather(all_given[me], root=n - 1, out=out if me == n - 1 else None, counts=counts)
    same(out, gathered if me == n - 1 else 0 * gathered, "uneven gather")
    out = np.empty_like(all_given[me])
    comm.scatter(gathered if me == 0 else None, out=out, counts=counts)
    same(out, all_given[me], "uneven scatter")
    same(comm.reduce_scatter(gathered, out=out, counts=counts), n * all_given[me], "uneven reduce_scatter")
    sent = [me + to + 1 for to in range(n)]
    blocks = np.concatenate([np.full(count, me * n + to) for to, count in enumerate(sent)])
    expected = np.concatenate([np.full(count, source * n + me) for source, count in enumerate(sent)])
    same(comm.all_to_all(blocks, out=np.empty_like(expected), sent=sent, received=sent), expected, "uneven all_to_all")


def named_reductions(comm):
    rows = np.stack([given(rank, 100, "int32") for rank in range(comm.size)])
    mine = rows[comm.rank]
    oracles = {"prod": np.prod, "min": np.min, "max": np.max, "bit-and": np.bitwise_and.reduce}
    oracles |= {"bit-or": np.bitwise_or.reduce, "bit-xor": np.bitwise_xor.reduce}
    for name, oracle in oracles.items():
        same(comm.all_reduce(mine.copy(), name), oracle(rows, axis=0).astype("int32"), name)
    truths = rows % 2 == 0
    for name, oracle in {"logical-and": np.all, "logical-or": np.any}.items():
        same(comm.all_reduce(truths[comm.rank].copy(), name), oracle(truths, axis=0), name)
    average = comm.all_reduce(mine.astype("float64"), weftlink.Reduction.AVERAGE)
    assert np.allclose(average, rows.mean(axis=0)), average
    halves = comm.all_reduce(mine.astype("float32"), weftlink.PremultipliedSum(0.5))
    same(halves, rows.sum(axis=0).astype("float32") / 2, "premultiplied sum")


def messages(comm):
    n, me = comm.size, comm.rank
    ring = [(rank, (rank + 1) % n) for rank in range(n)]
    got = comm.send_receive(np.array([me, 7]), ring, 2, out=np.zeros(2, "int64"))
    same(got, [(me - 1) % n, 7], "send_receive")
    got = comm.neighbours(np.full(6, me), (1, 1, n), out=np.zeros(6, "int64"))
    same(got, [me, me, me, me, (me - 1) % n, (me + 1) % n], "neighbours")
    ahead, behind = np.zeros(3), np.zeros(1)
    sends = [((me + 1) % n, np.full(3, me * 1.0)), ((me - 1) % n, np.array([me + 0.5]))]
    receives = [((me - 1) % n, ahead), ((me + 1) % n, behind)]
    if n > 2:
        comm.group(sends, receives)
        same(ahead, np.full(3, (me - 1) % n), "group ahead")
        same(behind, [(me + 1) % n + 0.5], "group behind")


main()
