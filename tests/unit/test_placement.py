"""Which worker a new session goes to: each criterion as a table, what holds always, and a herd of coordinators."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.cluster.placement import (
    CHANCE_WEIGHT,
    MAX_COMPARED,
    SLIGHT_LOAD,
    SLIGHT_SESSIONS,
    Candidate,
    Requirements,
    explain_no_worker,
    rank_workers,
)

PLAIN = Requirements("base", "acme")
GPU = Requirements("base", "acme", labels={"gpu": "1"})
WORKER = Candidate(
    id="a",
    providers=("oci",),
    labels={"arch": "x86_64"},
    capacity=100,
    claimed=10,
    by_tenant=0,
    ready={},
    waiting=0,
    pressure=0.0,
    draining=False,
    alive=True,
    assigned=0,
)
TIES = range(60)
ONE_GPU = Requirements("base", "acme", gpus=("any",))


def worker(name: str = "b", **changes: object) -> Candidate:
    return replace(WORKER, id=name, **changes)  # type: ignore[arg-type]


def firsts(want: Requirements, workers: Sequence[Candidate], **options: int) -> set[str]:
    """Who comes first, whatever chance says."""
    return {rank_workers(want, workers, tie, **options)[0] for tie in TIES}


def test_a_worker_with_the_image_comes_before_an_emptier_one_without() -> None:
    want = replace(PLAIN, image="rare")
    full, empty = worker("full", images={"rare": "sha256:1"}, claimed=90), worker("empty", claimed=0)
    assert firsts(want, [empty, full]) == {"full"}
    assert rank_workers(want, [empty, full], 1) == ["full", "empty"], "the other can get it"
    assert firsts(want, [empty, worker("taken", images={"rare": ""}, claimed=100)]) == {"empty"}
    many = [worker(f"w{number}", claimed=0) for number in range(200)]
    assert firsts(want, [*many, full]) == {"full"}


# One criterion at a time.


@pytest.mark.parametrize(
    ("why", "want", "other"),
    [
        ("dead", PLAIN, worker(alive=False)),
        ("draining", PLAIN, worker(draining=True)),
        ("another provider", replace(PLAIN, provider="oci"), worker(providers=("docker",))),
        ("without the label", replace(PLAIN, labels={"arch": "x86_64"}), worker(labels={})),
        ("another value of the label", replace(PLAIN, labels={"arch": "x86_64"}), worker(labels={"arch": "arm64"})),
        ("full", PLAIN, worker(claimed=100)),
        ("over full", PLAIN, worker(claimed=130)),
        ("full with what was sent there", PLAIN, worker(claimed=90, assigned=10)),
        ("no capacity", PLAIN, worker(capacity=0, claimed=0)),
        ("no room on the machine", PLAIN, worker(pressure=1.0)),
        ("pressure that is no number", PLAIN, worker(pressure=float("nan"))),
    ],
)
def test_an_unusable_worker_is_not_even_the_last_choice(why: str, want: Requirements, other: Candidate) -> None:
    assert rank_workers(want, [other, WORKER], 1) == ["a"], why
    assert rank_workers(want, [other], 1) == [], why


@pytest.mark.parametrize(
    ("why", "want", "other", "best"),
    [
        ("the emptier", PLAIN, worker(claimed=30), "a"),
        ("relative load counts", PLAIN, worker(capacity=400, claimed=11), "b"),
        ("not the number of sessions", PLAIN, worker(capacity=20, claimed=9), "a"),
        ("what was sent there counts", PLAIN, worker(claimed=5, assigned=20), "a"),
        ("a warm one is better", PLAIN, worker(ready={"base": 1}), "b"),
        ("also if a little fuller", PLAIN, worker(claimed=11, ready={"base": 1}), "b"),
        ("but not if much fuller", PLAIN, worker(claimed=40, ready={"base": 50}), "a"),
        ("the warm ones are for others", PLAIN, worker(claimed=16, ready={"python": 5}), "a"),
        ("a warm one is left", PLAIN, worker(claimed=8, assigned=2, ready={"base": 3}), "b"),
        ("the warm ones are spoken for", PLAIN, worker(claimed=11, assigned=2, ready={"base": 2}), "a"),
        ("no pool has what is wanted", replace(PLAIN, pooled=False), worker(claimed=16, ready={"base": 5}), "a"),
        ("a tenant is spread", PLAIN, worker(by_tenant=5), "a"),
        ("also onto one a little fuller", PLAIN, worker(claimed=9, by_tenant=40), "a"),
        ("but not onto one much fuller", PLAIN, worker(claimed=1, by_tenant=1), "b"),
        ("where nobody waits", PLAIN, worker(waiting=8), "a"),
        ("a queue outweighs a warm one", PLAIN, worker(ready={"base": 1}, waiting=50), "a"),
        ("a short queue is better than much load", PLAIN, worker(claimed=0, capacity=1000, waiting=2), "b"),
        ("a machine short of room is avoided", PLAIN, worker(claimed=0, pressure=0.95), "a"),
        ("a label is asked for", GPU, worker(claimed=90, labels={"gpu": "1", "zone": "a"}), "b"),
    ],
)
def test_the_better_of_two(why: str, want: Requirements, other: Candidate, best: str) -> None:
    assert firsts(want, [WORKER, other]) == {best}, why
    assert firsts(want, [other, WORKER]) == {best}, why


def test_what_others_may_have_sent_is_counted_for_each_of_them() -> None:
    workers = [worker("a", assigned=4), worker("b", claimed=22)]
    assert firsts(PLAIN, workers, coordinators=1) == {"a"}
    assert firsts(PLAIN, workers, coordinators=5) == {"b"}


def test_the_last_place_of_a_worker_is_used_however_many_coordinators_there_are() -> None:
    assert rank_workers(PLAIN, [worker("a", claimed=90, assigned=9)], 1, coordinators=10) == ["a"]


def test_after_the_best_comes_the_next_best_and_not_more_than_asked_for() -> None:
    workers = [worker(name, claimed=claimed) for name, claimed in (("d", 80), ("b", 30), ("a", 0), ("c", 55))]
    assert rank_workers(PLAIN, workers, 7) == ["a", "b", "c"]
    assert rank_workers(PLAIN, workers, 7, limit=1) == ["a"]
    assert rank_workers(PLAIN, workers, 7, limit=9) == ["a", "b", "c", "d"]


def test_a_worker_named_twice_is_asked_once() -> None:
    assert rank_workers(PLAIN, [WORKER, WORKER, worker("b", claimed=50)], 1) == ["a", "b"]


def test_among_equals_each_has_its_chance_with_numbers_in_sequence() -> None:
    workers = [worker(name) for name in "abc"]
    chosen = Counter(rank_workers(PLAIN, workers, tie)[0] for tie in range(3000))
    assert all(850 < chosen[name] < 1150 for name in "abc")


def test_pressure_below_the_mark_is_nobodys_disadvantage() -> None:
    assert firsts(PLAIN, [WORKER, worker("b", pressure=0.7)]) == {"a", "b"}


# Large clusters.


@pytest.mark.extended
def test_in_a_large_cluster_all_workers_have_their_turn() -> None:
    workers = [worker(f"w{number}") for number in range(1000)]
    assert len({rank_workers(PLAIN, workers, tie)[0] for tie in range(3000)}) > 800


@pytest.mark.extended
def test_a_new_and_empty_worker_in_a_large_cluster_does_not_get_everything() -> None:
    workers = [worker(f"w{number}", claimed=50) for number in range(999)] + [worker("new", claimed=0)]
    got = sum(rank_workers(PLAIN, workers, tie)[0] == "new" for tie in range(1000))
    assert 0 < got < 2 * MAX_COMPARED


def test_the_few_that_fit_are_found_among_many() -> None:
    workers = [worker(f"w{number}") for number in range(1000)]
    workers[123] = worker("x", labels={"gpu": "1"})
    workers[877] = worker("y", labels={"gpu": "1"}, claimed=70)
    assert all(rank_workers(GPU, workers, tie) == ["x", "y"] for tie in TIES)


@pytest.mark.parametrize(
    ("provider", "ready", "warm"),
    [
        ("", {"base": 1}, True),
        ("oci", {"base": 1}, True),
        ("docker", {"base": 1}, False),
        ("docker", {"base@docker": 1}, True),
        ("", {"base@docker": 1}, False),
    ],
)
def test_a_warm_sandbox_counts_if_the_provider_that_is_asked_for_made_it(
    provider: str, ready: dict[str, int], warm: bool
) -> None:
    cold = worker("cold", providers=("oci", "docker"))
    other = worker("other", providers=("oci", "docker"), ready=ready)
    assert (firsts(replace(PLAIN, provider=provider), [cold, other]) == {"other"}) is warm


# Always.

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        id=st.sampled_from([f"w{number}" for number in range(40)]),
        providers=st.sampled_from([("oci",), ("docker",), ("oci", "docker")]),
        labels=st.dictionaries(st.sampled_from(["gpu", "zone"]), st.sampled_from(["1", "2"])),
        capacity=st.integers(0, 20),
        claimed=st.integers(0, 25),
        by_tenant=st.integers(0, 25),
        ready=st.dictionaries(st.sampled_from(["base", "python"]), st.integers(0, 5)),
        waiting=st.integers(0, 20),
        pressure=st.floats(0, 1.2),
        draining=st.booleans(),
        alive=st.booleans(),
        assigned=st.integers(0, 5),
    ),
    max_size=12,
    unique_by=lambda each: each.id,
)
WANTS = st.builds(
    Requirements,
    st.sampled_from(["base", "python", "rare"]),
    st.just("acme"),
    provider=st.sampled_from(["", "oci", "docker"]),
    labels=st.dictionaries(st.sampled_from(["gpu", "zone"]), st.sampled_from(["1", "2"])),
    pooled=st.booleans(),
)
NUMBERS = st.integers(-(2**70), 2**70)


def may_have(want: Requirements, each: Candidate) -> bool:
    return (
        each.alive
        and not each.draining
        and (not want.provider or want.provider in each.providers)
        and all(each.labels.get(name) == value for name, value in want.labels.items())
        and each.claimed + each.assigned < each.capacity
        and each.pressure < 1
    )


@given(WANTS, CANDIDATES, NUMBERS, st.integers(1, 15))
def test_every_usable_worker_and_no_other_is_named_once(
    want: Requirements, workers: list[Candidate], tie: int, most: int
) -> None:
    names = rank_workers(want, workers, tie, most)
    usable = {each.id for each in workers if may_have(want, each)}
    assert set(names) <= usable
    assert len(names) == len(set(names)) == min(most, len(usable))
    assert (explain_no_worker(want, workers) == "") == bool(usable)


@given(WANTS, CANDIDATES, NUMBERS)
def test_the_same_question_has_the_same_answer_and_unusable_workers_do_not_change_it(
    want: Requirements, workers: list[Candidate], tie: int
) -> None:
    usable = [each for each in workers if may_have(want, each)]
    assert rank_workers(want, workers, tie) == rank_workers(want, workers, tie) == rank_workers(want, usable, tie)


@given(
    st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 5), st.integers(50, 1000), NUMBERS
)
def test_nothing_outweighs_being_much_emptier(
    by_tenant: int, waiting: int, ready: int, pace: int, capacity: int, tie: int
) -> None:
    empty = worker("a", capacity=capacity, claimed=0, by_tenant=by_tenant, waiting=waiting, pressure=0.8)
    full = worker("b", capacity=capacity, claimed=capacity * 3 // 4, ready={"base": ready})
    assert rank_workers(PLAIN, [full, empty], tie, coordinators=pace)[0] == "a"


@given(st.integers(1, 8), st.integers(1, 30), st.integers(40, 4000), NUMBERS)
def test_equal_workers_fill_evenly(count: int, each: int, capacity: int, tie: int) -> None:
    claimed = {f"w{number}": 0 for number in range(count)}
    for number in range(count * each):
        workers = [worker(name, capacity=capacity, claimed=held) for name, held in claimed.items()]
        claimed[rank_workers(PLAIN, workers, tie + number)[0]] += 1
    least, most = min(claimed.values()), max(claimed.values())
    assert most <= least * (1 + CHANCE_WEIGHT * SLIGHT_LOAD) + CHANCE_WEIGHT * SLIGHT_SESSIONS + 1


# Many coordinators, each with knowledge of its own age.

PERIOD_S = 2.0


class Herd:
    """Coordinators that choose by heartbeats, each worker's at its own time; all sessions stay."""

    def __init__(self, capacities: Sequence[int], claimed: Sequence[int], coordinators: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.capacities, self.claimed, self.by_tenant = capacities, list(claimed), [0] * len(claimed)
        self.beats = [self.rng.uniform(0, PERIOD_S) for _ in capacities]
        self.told = [self.as_it_is(number) for number in range(len(capacities))]
        self.views = [list(self.told) for _ in range(coordinators)]

    def as_it_is(self, number: int) -> Candidate:
        held, mine, capacity = self.claimed[number], self.by_tenant[number], self.capacities[number]
        return worker(str(number), capacity=capacity, claimed=held, by_tenant=mine, ready={"base": 5})

    def create(self, now: float, among: int) -> None:
        for number, beat in enumerate(self.beats):
            if beat <= now:
                self.beats[number] = beat + PERIOD_S
                for view in self.views:
                    view[number] = self.as_it_is(number)
        view = self.rng.choice(self.views)
        chosen = int(rank_workers(PLAIN, view, self.rng.getrandbits(64), coordinators=among)[0])
        self.claimed[chosen] += 1
        self.by_tenant[chosen] += 1
        view[chosen] = replace(view[chosen], assigned=view[chosen].assigned + 1)

    def worst(self) -> float:
        """How far the relative load of any worker is from that of all together, as a part of it."""
        mean = sum(self.claimed) / sum(self.capacities)
        loads = [held / capacity for held, capacity in zip(self.claimed, self.capacities, strict=True)]
        return max(abs(load / mean - 1) for load in loads)


def spread(
    capacities: Sequence[int], claimed: Sequence[int], coordinators: int, among: int, a_second: int, seed: int
) -> float:
    herd = Herd(capacities, claimed, coordinators, seed)
    for number in range(1000):
        herd.create(number / a_second, among)
    return herd.worst()


@pytest.mark.parametrize("a_second", [100, 300, 1000])
@pytest.mark.parametrize("coordinators", [1, 2, 3])
@pytest.mark.parametrize(
    ("capacities", "claimed"),
    [((4000, 4000, 4000), (0, 0, 0)), ((400, 400, 400), (0, 0, 0)), ((200, 400, 800), (0, 0, 0))],
)
def test_a_herd_spreads_a_thousand_sessions_evenly(
    capacities: Sequence[int], claimed: Sequence[int], coordinators: int, a_second: int
) -> None:
    for seed in range(4):
        assert spread(capacities, claimed, coordinators, coordinators, a_second, seed) < 0.15


@pytest.mark.parametrize("coordinators", [2, 3])
def test_a_herd_does_not_trample_a_worker_that_is_new(coordinators: int) -> None:
    for seed in range(4):
        assert spread((4000,) * 3, (300, 300, 0), coordinators, coordinators, 1000, seed) < 0.1


def test_a_herd_in_which_each_counts_only_for_itself_does() -> None:
    assert all(spread((4000,) * 3, (300, 300, 0), 3, 1, 1000, seed) > 0.2 for seed in range(4))


@pytest.mark.parametrize("coordinators", [1, 2, 3])
def test_a_herd_that_does_not_know_its_number_is_even_at_the_pace_of_three_machines(coordinators: int) -> None:
    for seed in range(10):
        assert spread((4000,) * 3, (0, 0, 0), coordinators, 2, 150, seed) < 0.2


# Why there is none.

HELD = {"gpu": "1"}


@pytest.mark.parametrize(
    ("want", "workers", "why"),
    [
        (PLAIN, [], "the cluster has no worker"),
        (PLAIN, [worker(alive=False)], "no worker is alive, of 1 that are known"),
        (replace(PLAIN, provider="docker"), [WORKER], "no worker has the provider docker, there are: oci"),
        (GPU, [WORKER, worker(labels={"gpu": "2"})], "no worker has the label gpu=1"),
        (GPU, [WORKER, worker(labels=HELD, alive=False)], "no worker has the label gpu=1"),
        (
            replace(PLAIN, labels={"gpu": "1", "zone": "a"}),
            [worker("a", labels=HELD), worker("b", labels={"zone": "a"})],
            "no worker has all of the labels gpu=1, zone=a",
        ),
        (PLAIN, [worker(draining=True)], "all workers that could take the session are draining"),
        (GPU, [WORKER, worker(labels=HELD, draining=True)], "all workers that could take the session are draining"),
        (
            PLAIN,
            [worker("a", claimed=100), worker("b", pressure=1.0), worker("c", draining=True)],
            "all workers that could take the session are full: "
            "1 with as many sandboxes as they may have, 1 short of memory or disk",
        ),
        (PLAIN, [worker(alive=False), WORKER], ""),
    ],
)
def test_the_caller_is_told_what_is_missing(want: Requirements, workers: list[Candidate], why: str) -> None:
    assert explain_no_worker(want, workers) == why
    assert bool(rank_workers(want, workers, 1)) == (why == "")


# Graphics processors.


def test_a_session_goes_where_enough_gpus_are_free() -> None:
    have = worker("gpu", gpus=4, gpus_free=("2", "3"), claimed=90)
    used = worker("used", gpus=4, gpus_free=(), claimed=0)
    assert firsts(ONE_GPU, [WORKER, used, have]) == {"gpu"}
    assert rank_workers(replace(ONE_GPU, gpus=("any",) * 3), [WORKER, used, have], 1) == []
    assert firsts(PLAIN, [used, have]) == {"used"}


@pytest.mark.parametrize(
    ("wanted", "workers", "sentence"),
    [
        (1, [WORKER], "no worker has a GPU for sandboxes"),
        (3, [worker(gpus=2, gpus_free=("0", "1"))], "no worker has 3 GPUs for sandboxes"),
        (2, [worker(gpus=2, gpus_free=("0",))], "no free GPU: 2 asked for, and no worker has more than 1 free"),
        (1, [worker(gpus=1, gpus_free=("0",))], ""),
    ],
)
def test_why_no_worker_has_the_gpus(wanted: int, workers: list[Candidate], sentence: str) -> None:
    assert explain_no_worker(replace(ONE_GPU, gpus=("any",) * wanted), workers) == sentence
