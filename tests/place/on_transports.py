"""Transports: what is sent arrives, in order, whatever its type and size; credits; faults; nothing is left behind.

`test_transports.py` runs these tests in a process with 8 devices: each place has one, and a thread of XLA's.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import needs
from lanewise.core.errors import InternalError, OptionError, PlaceError
from lanewise.place.transports import compiled, greeting, interface, launched, nearby, threads
from lanewise.place.transports.interface import explain
from lanewise.place.transports.launched import local_group
from lanewise.place.transports.local import Local
from lanewise.place.transports.rendezvous import Meeting, met
from lanewise.place.transports.tcp import Tcp
from places import aval, closed, opened, opening, ran, together, transports

KINDS = [
    pytest.param("local", marks=needs.compiler),
    "local callback",
    pytest.param("tcp", marks=needs.compiler),
    "tcp callback",
    pytest.param("tcp far", marks=needs.compiler),
    "tcp far callback",
    pytest.param("mixed", marks=needs.compiler),
]
COMPILED = [pytest.param(kind, marks=needs.compiler) for kind in ("local", "tcp", "tcp far")]


def values() -> list[Any]:
    with jax.enable_x64(True):
        wide = [jnp.arange(3, dtype=d) for d in (jnp.float64, jnp.int64, jnp.complex128)]
    return [
        jnp.float32(1.5),
        jnp.array([True, False, True]),
        *(jnp.arange(-4, 4, dtype=d) for d in (jnp.int4, jnp.int8, jnp.int16, jnp.int32)),
        *(jnp.arange(5, dtype=d) for d in (jnp.uint4, jnp.uint8, jnp.uint32, jnp.bfloat16)),
        jnp.arange(6, dtype=jnp.float16).reshape(2, 3),
        jnp.asarray(np.array([1, 0.5, -2, 4]).astype(jnp.float8_e4m3fn)),
        jnp.array([1 + 2j, -3j], jnp.complex64),
        jnp.zeros((0, 3)),
        jnp.array([np.nan, np.inf, -0.0, 1e-42], jnp.float32),
        *wide,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_all_types_arrive(kind: str) -> None:
    """There and back, all of them in one compiled function."""
    sent, carriers = values(), transports(kind, 2)
    sessions = opened(carriers)

    def ping(token: Any) -> Any:
        back = []
        for k, value in enumerate(sent):
            token = carriers[0].send(token, value, target=1, number=2 * k)
            token, got = carriers[0].receive(token, aval(value), source=1, number=2 * k + 1)
            back.append(got)
        return back

    def pong(token: Any) -> Any:
        for k, value in enumerate(sent):
            token, got = carriers[1].receive(token, aval(value), source=0, number=2 * k)
            token = carriers[1].send(token, got, target=0, number=2 * k + 1)
        return token

    with jax.enable_x64(True):
        # Which types there are is a setting of the thread, so both are compiled on this one.
        ready = [
            jax.jit(part).lower(jax.ShapeDtypeStruct((), jnp.int32)).compile()
            for part in (ping, pong)
        ]
    back, token = together(
        [lambda k=k: jax.block_until_ready(ready[k](sessions[k].token)) for k in (0, 1)]
    )
    closed(carriers, sessions)
    assert not isinstance(token, Exception), token
    for value, got in zip(sent, back):
        assert got.dtype == value.dtype and got.shape == value.shape
        assert np.asarray(got).tobytes() == np.asarray(value).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("credits", [1, 3])
def test_loops_go_round(kind: str, credits: int) -> None:
    """A loop over three places, with values that go around and some that go one way; twice, in two sessions."""
    size, turns = 3, 20
    carriers = transports(kind, size)

    def part(k: int) -> Any:
        after, before = (k + 1) % size, (k - 1) % size

        def body(i: Any, state: Any) -> Any:
            token, x, total = state
            if k == 0:
                token = carriers[k].send(token, x, target=after, number=0)
                token = carriers[k].send(token, i, target=2, number=9)
                token, x = carriers[k].receive(token, aval(0.0), source=before, number=2)
            else:
                token, x = carriers[k].receive(token, aval(0.0), source=before, number=k - 1)
                x = jnp.float32(k + 1) * x / 2 + 1
                token = carriers[k].send(token, x, target=after, number=k)
            if k == 2:
                token, i = carriers[k].receive(token, aval(0), source=0, number=9)
                total = total + i
            return token, x, total

        state = (jnp.float32(1), jnp.int32(0))
        return lambda token: jax.lax.fori_loop(0, turns, body, (token, *state))[1:]

    wanted = np.float32(1)
    for _ in range(turns):
        wanted = np.float32(1.5) * (wanted + 1) + 1
    functions = [part(k) for k in range(size)]
    for _ in range(2):
        sessions = opened(carriers, credits=credits)
        out = ran(sessions, functions)
        closed(carriers, sessions)
        assert all(explain(s) is None for s in sessions)
        np.testing.assert_allclose(out[0][0], wanted, rtol=1e-5)
        assert out[2][1] == turns * (turns - 1) // 2


@pytest.mark.parametrize("kind", KINDS)
def test_large_values_cross(kind: str) -> None:
    """Both send more than sockets hold before they receive; and one sends as many as it has credits for, unasked."""
    carriers = transports(kind, 2)
    sessions = opened(carriers, credits=2)
    like = jnp.zeros((1 << 22,), jnp.float32)

    def part(k: int) -> Any:
        def function(token: Any) -> Any:
            mine = like + jnp.arange(like.size, dtype=jnp.float32) * (k + 1) + token * 0
            for number in (0, 1):
                token = carriers[k].send(token, mine + number, target=1 - k, number=number)
            out = []
            for number in (0, 1):
                token, got = carriers[k].receive(token, aval(like), source=1 - k, number=number)
                out.append(got)
            return out

        return function

    out = ran(sessions, [part(0), part(1)])
    closed(carriers, sessions)
    for k in (0, 1):
        for number in (0, 1):
            wanted = np.arange(like.size, dtype=np.float32) * (2 - k) + number
            np.testing.assert_array_equal(out[k][number], wanted)


def shared_memories() -> int:
    """How many memories this process shares with others, by `shared.h`; each is there for both of them."""
    try:
        with open("/proc/self/maps") as maps:
            return sum("memfd:lanewise" in line for line in maps)
    except OSError:
        return 0


@pytest.mark.parametrize("credits", [1, 3])
@pytest.mark.parametrize("kind", ["tcp", "tcp far", "mixed"])
@needs.compiler
def test_large_values_share_memory(kind: str, credits: int) -> None:
    """Values that grow and shrink, one way and back, taken at once and late: by memory where both sides can."""
    carriers = transports(kind, 2)
    sessions = opened(carriers, credits=credits)
    sizes = [50_000, 3, 20_000, 50_000, 200_000, 10, 200_000, 9_000, 700_000, 200_000]

    def turn(k: int, token: Any, base: Any) -> Any:
        """Each sends what it has credit for, then takes as much."""
        right, number = jnp.bool_(True), 0
        for first in range(0, len(sizes), credits):
            some = sizes[first : first + credits]
            values = [jnp.arange(n, dtype=jnp.float32) + base + i for i, n in enumerate(some)]
            for i, value in enumerate(values):
                token = carriers[k].send(token, value + k, target=1 - k, number=number + i)
            for i, value in enumerate(values):
                about = aval(value)
                token, got = carriers[k].receive(token, about, source=1 - k, number=number + i)
                right &= jnp.all(got == value + 1 - k)
            number += len(some)
        return token, right

    def part(k: int) -> Any:
        def function(token: Any) -> Any:
            def step(i: Any, carry: Any) -> Any:
                token, right = carry
                token, found = turn(k, token, i)
                return token, right & found

            return jax.lax.fori_loop(0, 4, step, (token, jnp.bool_(True)))[1]

        return function

    for _ in range(2):
        assert all(map(bool, ran(sessions, [part(0), part(1)])))
    near = nearby.listening_nearby()
    if near is not None:
        near[0].close()
        # Of two directions, each side has the memory of both.
        assert shared_memories() == (4 if kind == "tcp" else 0)
    closed(carriers, sessions)
    assert shared_memories() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_random_moves(kind: str) -> None:
    """Random values between four places, some larger than a socket holds, with one credit an edge: none waits for ever.

    `LANEWISE_TRIALS` sets how many sequences of moves there are.
    """
    size, number_of_moves = 4, 25
    carriers = transports(kind, size)
    for trial in range(int(os.environ.get("LANEWISE_TRIALS", "1"))):
        random = np.random.default_rng(trial)
        moves = [tuple(random.choice(size, 2, replace=False)) for _ in range(number_of_moves)]
        sizes = random.choice([0, 1, 3000, 400_000], len(moves), p=[0.1, 0.5, 0.3, 0.1])
        sent = [random.integers(0, 2**31, n, dtype=np.int32) for n in sizes]
        edges = {(int(a), int(b)): int(random.integers(1, 3)) for a, b in moves}
        if not trial:
            edges = dict.fromkeys(edges, 1)
        sessions = opened(carriers, credits=edges)

        def part(k: int) -> Any:
            def run(token: Any) -> Any:
                came = []
                for number, ((a, b), value) in enumerate(zip(moves, sent)):
                    about = jax.ShapeDtypeStruct(value.shape, value.dtype)
                    if a == k:
                        token = carriers[k].send(token, value, target=int(b), number=number)
                    elif b == k:
                        token, got = carriers[k].receive(token, about, source=int(a), number=number)
                        came.append(got)
                return came

            return run

        out = ran(sessions, [part(k) for k in range(size)])
        closed(carriers, sessions)
        for k in range(size):
            wanted = [value for (_, b), value in zip(moves, sent) if b == k]
            assert not isinstance(out[k], Exception), out[k]
            for got, value in zip(out[k], wanted, strict=True):
                np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_ends_all(kind: str) -> None:
    """A requirement that does not hold at one place ends those that wait for it, which learn where and which."""
    carriers = transports(kind, 3)
    sessions = opened(carriers, credits={(0, 1): 1, (1, 2): 1})
    functions = [
        lambda token: carriers[0].require(token, token < 0, number=7),
        lambda token: carriers[1].receive(token, aval(0.0), source=0, number=0),
        lambda token: carriers[2].receive(token, aval(0.0), source=1, number=1),
    ]
    out = ran(sessions, functions)
    assert all(isinstance(one, Exception) for one in out)
    for session in sessions:
        fault = explain(session)
        assert fault is not None and (fault.place, fault.kind, fault.number) == (0, "failed", 7)
        assert "part p0 (rank 0) failed" in str(interface.error(session, fault))
    closed(carriers, sessions)
    assert all(explain(session) is not None for session in sessions)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_raised_once(kind: str) -> None:
    """Not again when JAX waits for effects, as it does when the process ends."""
    carriers = transports(kind, 2)
    sessions = opened(carriers)

    # Large enough for XLA not to run it on this thread.
    @jax.jit
    def function(token: Any, x: Any) -> Any:
        return carriers[0].require(token, (x @ x).sum() < 0, number=7)

    with pytest.raises(Exception, match="requirement"):
        jax.block_until_ready(function(sessions[0].token, jnp.ones((300, 300))))
    closed(carriers[1:], sessions[1:])
    carriers[0].close(sessions[0])
    jax.effects_barrier()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reason_ends_all(kind: str) -> None:
    carriers = transports(kind, 2)
    sessions = opened(carriers)

    def waits(token: Any) -> Any:
        return carriers[1].receive(token, aval(0.0), source=0, number=0)

    def closes() -> None:
        time.sleep(0.1)
        carriers[0].close(sessions[0], "the disk is full")

    ended, _ = together([lambda: jax.block_until_ready(jax.jit(waits)(sessions[1].token)), closes])
    assert isinstance(ended, Exception)
    fault = explain(sessions[1])
    assert fault is not None and fault == interface.Fault(0, "failed", "the disk is full")
    error = interface.error(sessions[1], fault)
    assert isinstance(error, PlaceError) and error.place == 0 and error.kind == "failed"
    carriers[1].close(sessions[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("waits_for", ["a message", "a credit"])
def test_an_interrupt_ends_what_waits(kind: str, waits_for: str) -> None:
    carriers = transports(kind, 2)
    sessions = opened(carriers)

    def waits(token: Any) -> Any:
        if waits_for == "a message":
            return carriers[0].receive(token, aval(0.0), source=1, number=0)
        for number in range(2):
            token = carriers[0].send(token, jnp.zeros(3), target=1, number=number)
        return token

    def interrupts() -> None:
        time.sleep(0.1)
        sessions[0].interrupt()

    ended, _ = together(
        [lambda: jax.block_until_ready(jax.jit(waits)(sessions[0].token)), interrupts]
    )
    assert isinstance(ended, Exception)
    for carrier, session in zip(carriers, sessions):
        carrier.close(session)
        fault = explain(session)
        assert fault is not None and (fault.place, fault.kind) == (0, "interrupted")


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_ends_early_is_named(kind: str) -> None:
    carriers = transports(kind, 2)
    sessions = opened(carriers)

    def waits() -> Any:
        function = jax.jit(lambda t: carriers[1].receive(t, aval(0.0), source=0, number=4))
        with pytest.raises(Exception):  # noqa: B017
            jax.block_until_ready(function(sessions[1].token))
        carriers[1].close(sessions[1])

    together([waits, lambda: carriers[0].close(sessions[0])])
    fault = explain(sessions[1])
    assert fault is not None and fault.place == 0 and "before value 4 was sent" in fault.message


@pytest.mark.parametrize("kind", KINDS)
def test_another_value_than_expected_is_a_bug(kind: str) -> None:
    carriers = transports(kind, 2)
    sessions = opened(carriers)
    out = ran(
        sessions,
        [
            lambda token: carriers[0].send(token, jnp.zeros(3), target=1, number=0),
            lambda token: carriers[1].receive(token, aval(jnp.zeros(4)), source=0, number=0),
        ],
    )
    assert isinstance(out[1], Exception)
    fault = explain(sessions[1])
    assert (
        fault is not None and fault.kind == "internal" and "16 bytes was expected" in fault.message
    )
    assert isinstance(interface.error(sessions[1], fault), InternalError)
    closed(carriers, sessions)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_behind(kind: str) -> None:
    """Threads and files are as before; closing again does nothing."""

    def once(fails: bool) -> None:
        carriers = transports(kind, 2)
        sessions = opened(carriers)
        functions = [
            lambda token: carriers[0].send(token, jnp.zeros(3), target=1, number=0),
            lambda token: carriers[1].receive(
                token, aval(jnp.zeros(3)), source=0, number=int(fails)
            ),
        ]
        ran(sessions, functions)
        for _ in range(2):
            closed(carriers, sessions)
        with pytest.raises(Exception, match="closed"):
            jax.block_until_ready(jax.jit(functions[0])(sessions[0].token))

    once(False)
    gc.collect()
    before = counts()
    for fails in (False, True, False):
        once(fails)
    gc.collect()
    assert counts() == before


def counts() -> tuple[int, int, int, int]:
    tasks, files = (len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd"))
    open_sessions = compiled.sessions() if compiled.library() is not None else 0
    return tasks, files, open_sessions, shared_memories()


@pytest.mark.parametrize("kind", COMPILED)
def test_code_is_compiled_once_for_all_sessions(kind: str) -> None:
    carriers, traced = transports(kind, 2), [0, 0]

    def sends(token: Any) -> Any:
        traced[0] += 1
        return carriers[0].send(token, jnp.zeros(3), target=1, number=0)

    def receives(token: Any) -> Any:
        traced[1] += 1
        return carriers[1].receive(token, aval(jnp.zeros(3)), source=0, number=0)

    functions = [jax.jit(sends), jax.jit(receives)]
    for _ in range(3):
        sessions = opened(carriers)
        together([lambda k=k: functions[k](sessions[k].token) for k in (0, 1)])
        closed(carriers, sessions)
    assert traced == [1, 1]


@pytest.mark.parametrize("kind", ["local", "tcp callback"])
def test_programs_that_differ_are_refused(kind: str) -> None:
    if kind == "local" and compiled.library() is None:
        pytest.skip(needs.COMPILER_REASON)
    carriers = transports(kind, 2)
    made = together(
        [lambda k=k: carriers[k].open(opening(k, 2, digest=f"digest{k}")) for k in (0, 1)]
    )
    failed = [one for one in made if isinstance(one, Exception)]
    assert failed and all(isinstance(one, PlaceError) for one in failed)
    assert all("digest0" in str(one) and "digest1" in str(one) for one in failed)
    assert len(failed) == (1 if kind == "local" else 2)
    for carrier, one in zip(carriers, made):
        if not isinstance(one, Exception):
            carrier.close(one)


def test_openings_are_checked() -> None:
    with pytest.raises(OptionError, match="place 2 of 2"):
        opening(2, 2)
    with pytest.raises(OptionError, match="timeout=0"):
        opening(0, 2, timeout=0)
    with pytest.raises(OptionError, match="edge from place 0 to place 5"):
        opening(0, 2, credits={(0, 5): 1})
    with pytest.raises(OptionError, match="with 0 credits"):
        opening(0, 2, credits={(0, 1): 0})


# -- how processes meet --------------------------------------------------------------------------------


def test_a_peer_that_never_comes_is_an_error() -> None:
    first, _ = transports("tcp callback", 2, patience=0.3)
    with pytest.raises(
        PlaceError, match=r"part p1 \(rank 1\) did not connect to part p0 \(rank 0\) within 0.3 s"
    ):
        first.open(opening(0, 2))
    _, second = transports("tcp callback", 2, patience=0.3)
    with pytest.raises(
        PlaceError, match=r"rank 0 was not reached at 127.0.0.1:\d+ within 0.3 s: .*refused"
    ):
        second.open(opening(1, 2))


def test_a_peer_with_another_secret_is_refused() -> None:
    ours, theirs = local_group(2)
    theirs = replace(theirs, secret="guessed")
    first, second = (Tcp(one.meeting(patience=1.0), by_callback=True) for one in (ours, theirs))
    out = together([lambda: first.open(opening(0, 2)), lambda: second.open(opening(1, 2))])
    assert all(isinstance(one, PlaceError) for one in out)
    assert "1 that came had another secret" in str(out[0])
    assert "another secret (LANEWISE_SECRET)" in str(out[1])


def test_two_processes_with_one_rank_are_an_error() -> None:
    group = local_group(3)
    carriers = [Tcp(group[rank].meeting(patience=5.0), by_callback=True) for rank in (0, 1, 1)]
    out = together([lambda c=c: c.open(opening(c.meeting.rank, 3)) for c in carriers])
    assert all(
        isinstance(one, PlaceError) and "two processes are rank 1" in str(one) for one in out
    )


def test_a_peer_that_leaves_while_others_meet_is_an_error() -> None:
    """Two of three are there; one of them goes before the third comes."""
    group = local_group(3)
    first = Tcp(group[0].meeting(patience=20.0), by_callback=True)

    def leaves() -> None:
        meeting = group[1].meeting()
        while True:
            try:
                sock = socket.create_connection((meeting.host, meeting.port), timeout=10)
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        with sock:
            greeting.come_in(sock, meeting.secret)
            hello = {"version": 1, "run": "", "rank": 1, "size": 3, "digest": "abc", "port": 1}
            greeting.say(sock, hello)
            time.sleep(0.3)

    error, _ = together([lambda: first.open(opening(0, 3)), leaves])
    assert isinstance(error, PlaceError) and error.place == 1
    assert "part p1 (rank 1) ended while the run was opened" in str(error)


def test_strangers_do_not_disturb() -> None:
    """Others that connect: one says nothing, one something else, one is gone at once."""
    group = local_group(2)
    carriers = [Tcp(one.meeting(patience=20.0), by_callback=True) for one in group]

    def strangers() -> Any:
        time.sleep(0.2)
        address, made = (group[0].host, group[0].port), []
        for said in (b"", b"GET / HTTP/1.1\r\n" + b"x" * 200, None):
            sock = socket.create_connection(address, timeout=10)
            made.append(sock)
            if said is None:
                sock.close()
            elif said:
                sock.sendall(said)
        session = carriers[1].open(opening(1, 2))
        for sock in made:
            sock.close()
        return session

    sessions = together([lambda: carriers[0].open(opening(0, 2)), strangers])
    closed(carriers, sessions)


def test_a_port_that_is_taken_is_an_error() -> None:
    one = local_group(2)[0]
    with socket.socket() as taken:
        taken.bind((one.host, one.port))
        taken.listen()
        with pytest.raises(
            PlaceError,
            match=f"cannot listen at 127.0.0.1:{one.port}: .*in use; give the run another port",
        ):
            Tcp(one.meeting(), by_callback=True).open(opening(0, 2))


def test_sessions_of_two_runs_open_at_the_same_address() -> None:
    """In any order, distinguished by the name of the run; their programs differ."""
    group = local_group(2)

    def open_one(rank: int, run: str) -> Any:
        time.sleep(0.1 * (run == ("a", "b")[rank]))
        carrier = Tcp(group[rank].meeting(run, 20.0), by_callback=True)
        return carrier.open(opening(rank, 2, digest=run))

    pairs = [(rank, run) for rank in (0, 1) for run in ("a", "b")]
    sessions = together([lambda one=one: open_one(*one) for one in pairs])
    assert not [one for one in sessions if isinstance(one, Exception)], sessions
    for one in together([lambda s=s: interface.close(s) for s in sessions]):
        assert one is None


def families(meetings: Sequence[Meeting]) -> list[Any]:
    """Of the connections that the places hold, those for signs of life and those for values."""
    size = len(meetings)
    asked = zip(meetings, range(size))
    found = together([lambda m=m, k=k: met(opening(k, size), m) for m, k in asked])
    for one in found:
        assert not isinstance(one, Exception), one
    peers = [peer for one in found for peer in one]
    out = [{sock.family for sock in kind} for kind in zip(*((p.life, p.values) for p in peers))]
    for peer in peers:
        peer.close()
    return out


def test_values_go_by_unix_sockets_inside_a_machine() -> None:
    """Between all pairs, unless a process has it turned off."""
    near = nearby.listening_nearby()
    if near is None:
        pytest.skip("no Unix sockets with room here; on Linux, `sysctl net.core.wmem_max=4194304`")
    near[0].close()
    meetings = [one.meeting(patience=20.0) for one in local_group(3)]
    assert families(meetings) == [{socket.AF_INET}, {socket.AF_UNIX}]
    far = [replace(one, nearby=False) for one in meetings]
    assert families(far) == [{socket.AF_INET}, {socket.AF_INET}]
    # Of two processes either says that it is far.
    for rank in (0, 1):
        meetings = [replace(m, nearby=m.rank != rank, size=2) for m in meetings[:2]]
        assert families(meetings) == [{socket.AF_INET}, {socket.AF_INET}]


def test_too_small_a_buffer_is_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any kernel grants: values go by TCP."""
    monkeypatch.setattr(nearby, "BUFFER_BYTES", (1 << 31) - 1)
    assert nearby.listening_nearby() is None
    meetings = [one.meeting(patience=20.0) for one in local_group(2)]
    assert families(meetings) == [{socket.AF_INET}, {socket.AF_INET}]


@pytest.mark.parametrize("why", ["elsewhere", "a stranger", "not there"])
def test_what_is_not_reached_nearby_is_reached_by_tcp(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is that of another machine, or another program listens there, or there are no such names."""
    with contextlib.ExitStack() as stack:
        name = "lanewise-elsewhere"
        if why == "a stranger":
            other = stack.enter_context(greeting.listening("127.0.0.1", 0, b"another secret"))
            name = other.nearby
        made = nearby.listening_nearby

        def misnamed() -> Any:
            found = made()
            return None if why == "not there" or found is None else (found[0], name)

        monkeypatch.setattr(greeting, "listening_nearby", misnamed)
        meetings = [one.meeting(patience=20.0) for one in local_group(3)]
        assert families(meetings) == [{socket.AF_INET}, {socket.AF_INET}]


def test_a_process_learns_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (launched.RANK, launched.SIZE, launched.ADDRESS, launched.SECRET):
        monkeypatch.delenv(name, raising=False)
    assert launched.launched() is None
    given = local_group(2)[1]
    for name, value in given.environment().items():
        monkeypatch.setenv(name, value)
    assert launched.launched() == given
    assert given.secret not in repr(given) and given.secret not in repr(given.meeting())
    monkeypatch.setenv(launched.RANK, "2")
    with pytest.raises(OptionError, match="LANEWISE_RANK=2: ranks are 0 to 1"):
        launched.launched()
    monkeypatch.setenv(launched.ADDRESS, "somewhere")
    with pytest.raises(OptionError, match="LANEWISE_ADDRESS=somewhere"):
        launched.launched()
    monkeypatch.delenv(launched.SECRET)
    with pytest.raises(OptionError, match="LANEWISE_SECRET: not set"):
        launched.launched()


# -- threads -------------------------------------------------------------------------------------------


@needs.compiler
def test_sessions_at_the_same_time() -> None:
    """More places at a time than XLA has threads, with matrix products between their messages."""
    runs = 6
    groups = [transports("local", 2) for _ in range(runs)]
    x = jnp.eye(200) * 1.01

    def part(carrier: Any, k: int) -> Any:
        def body(_: Any, state: Any) -> Any:
            token, value = state
            other = value @ value.T
            if k == 0:
                token = carrier.send(token, value @ value, target=1, number=0)
                token, value = carrier.receive(token, aval(x), source=1, number=1)
            else:
                token, value = carrier.receive(token, aval(x), source=0, number=0)
                token = carrier.send(token, jnp.sqrt(value), target=0, number=1)
            return token, value + 0 * other

        return lambda token: jax.lax.fori_loop(0, 10, body, (token, x))[1]

    functions = [part(groups[0][0], k) for k in (0, 1)]

    def run(carriers: Any) -> Any:
        sessions = opened(carriers)
        out = ran(sessions, functions)
        closed(carriers, sessions)
        return out[0]

    for one in together([lambda group=group: run(group) for group in groups]):
        np.testing.assert_allclose(one, x, rtol=1e-4, atol=1e-4)


def test_too_many_places_at_a_time_are_an_error() -> None:
    first = [Local(by_callback=True) for _ in range(threads.most())]
    sessions = [one.open(opening(0, 1, credits={})) for one in first]
    late = Local(by_callback=True, patience=0.1)
    with pytest.raises(PlaceError, match="Close a run before the next"):
        late.open(opening(0, 1, credits={}))
    first[0].close(sessions[0])
    late.close(late.open(opening(0, 1, credits={})))
    for one, session in zip(first[1:], sessions[1:]):
        one.close(session)


@needs.compiler
def test_a_function_that_changes_threads_flushes_denormals_as_before() -> None:
    tiny = jnp.float32(1e-30)
    carriers = transports("local", 2)
    sessions = opened(carriers)

    def product(x: Any) -> Any:
        return x * jnp.float32(1e-10)

    def waits(token: Any) -> Any:
        token, got = carriers[1].receive(token, aval(tiny), source=0, number=0)
        return product(got)

    def sends() -> Any:
        time.sleep(0.1)
        function = jax.jit(lambda t: carriers[0].send(t, tiny, target=1, number=0))
        return jax.block_until_ready(function(sessions[0].token))

    out, _ = together([lambda: jax.block_until_ready(jax.jit(waits)(sessions[1].token)), sends])
    closed(carriers, sessions)
    assert out == jax.jit(product)(tiny)


def sockets() -> set[str]:
    """The sockets that this process holds."""
    found = set()
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{file}"))
    return {one for one in found if one.startswith("socket:")}


@pytest.mark.parametrize("kind", [pytest.param("tcp", marks=needs.compiler), "tcp callback"])
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_child_has_no_sessions(kind: str) -> None:
    """Nor does it keep the parent's connections open; the parent's session goes on."""
    carriers, before = transports(kind, 2), sockets()
    sessions = opened(carriers)
    made = sockets() - before
    assert len(made) >= 4
    read, write = os.pipe()
    # Nothing of JAX runs in the child.
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(len(made & sockets())).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 200).decode()
    os.close(read)
    os.close(write)
    assert said == "0"
    out = ran(
        sessions,
        [
            lambda token: carriers[0].send(token, jnp.zeros(3), target=1, number=0),
            lambda token: carriers[1].receive(token, aval(jnp.zeros(3)), source=0, number=0)[1],
        ],
    )
    closed(carriers, sessions)
    np.testing.assert_array_equal(out[1], np.zeros(3))


@needs.compiler
def test_a_ring_of_places_that_compute() -> None:
    """Eight places on two cores or so, credits 1, with matrix products that XLA runs on its pool."""
    size, turns = 8, 4
    carriers = transports("local", size)
    sessions = opened(carriers, credits={(k, (k + 1) % size): 1 for k in range(size)})
    x = np.random.default_rng(0).normal(size=(160, 160)).astype(np.float32) / 20

    def part(k: int) -> Any:
        after, before = (k + 1) % size, (k - 1) % size

        def body(_: Any, state: Any) -> Any:
            token, value, own = state
            more = jnp.tanh(own @ own) @ jnp.cos(own.T @ own)
            if k == 0:
                token = carriers[k].send(token, value, target=after, number=k)
                token, value = carriers[k].receive(token, aval(x), source=before, number=before)
            else:
                token, value = carriers[k].receive(token, aval(x), source=before, number=before)
                value = jnp.tanh(value @ x)
                token = carriers[k].send(token, value, target=after, number=k)
            return token, value, own + 1e-3 * more

        return lambda token: jax.lax.fori_loop(0, turns, body, (token, x, x))[1]

    wanted = x.astype(np.float64)
    for _ in range(turns * (size - 1)):
        wanted = np.tanh(wanted @ x)
    out = ran(sessions, [part(k) for k in range(size)])
    closed(carriers, sessions)
    np.testing.assert_allclose(out[0], wanted, rtol=1e-3, atol=1e-5)


def test_more_places_than_threads_are_an_error() -> None:
    size = threads.most() + 1
    with pytest.raises(OptionError, match="give each place a device of its own"):
        Local(by_callback=True).open(opening(0, size))


def test_local_joins_by_group() -> None:
    """Places open in any order, and again for the next run."""
    transport = Local(by_callback=True)
    tokens = set()
    for order in ((1, 0), (0, 1)):
        sessions = [transport.open(opening(k, 2)) for k in order]
        tokens |= {int(session.token) for session in sessions}
        for session in sessions:
            transport.close(session)
    assert len(tokens) == 4
