"""The plan of the night: everybody comes home or misses, and never before they went."""

from collections import defaultdict

from bench.scale_night import HOURS, Share, plan


def test_everybody_arms_and_comes_home_or_misses():
    share = Share(first=1, last=2_000, start=0.0, compress=60, misses=100, seed=7)
    by_person: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for at, verb, number in plan(share):
        by_person[number].append((at, verb))
    assert sorted(by_person) == list(range(1, 2_001))
    for events in by_person.values():
        verbs = [verb for _, verb in sorted(events)]
        assert verbs[0] == "arm"
        assert verbs[1:-1] in ([], ["extend"])
        assert verbs[-1] in {"safe", "cancel", "miss"}
        assert min(events)[0] <= len(HOURS) * 60
    missed = sum(verb == "miss" for events in by_person.values() for _, verb in events)
    assert 150 < missed < 250
