"""Which provider makes a sandbox, and the sentences that refuse what a server or a provider does not have."""

import pytest

from warren.model.capability import Capability, choose_provider
from warren.model.errors import InvalidRequest

PROVIDERS = {
    "oci": frozenset({Capability.USER_NAMESPACE, Capability.TERMINALS}),
    "docker": frozenset({Capability.TERMINALS, Capability.GPU}),
}


@pytest.mark.parametrize(("name", "chosen"), [("", "oci"), ("oci", "oci"), ("docker", "docker")])
def test_the_named_provider_is_chosen_or_the_first(name: str, chosen: str) -> None:
    assert choose_provider(PROVIDERS, name) == chosen


def test_a_provider_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidRequest) as caught:
        choose_provider(PROVIDERS, "e2b")
    assert caught.value.message == "this server has no provider 'e2b'"
    assert caught.value.remedy == "leave provider out, or use one that it has: oci, docker"


def test_a_capability_that_is_missing_is_refused_with_the_providers_that_have_it() -> None:
    assert choose_provider(PROVIDERS, "docker", {Capability.GPU}) == "docker"
    with pytest.raises(InvalidRequest) as caught:
        choose_provider(PROVIDERS, "", {Capability.GPU, Capability.TERMINALS})
    assert caught.value.message == "the provider oci does not have the capability gpu"
    assert caught.value.remedy == "use a provider that has it: docker"
    with pytest.raises(InvalidRequest) as caught:
        choose_provider(PROVIDERS, "docker", {Capability.SNAPSHOTS})
    assert caught.value.message == "the provider docker does not have the capability snapshots"
    assert caught.value.remedy == "no provider of this server has it"
