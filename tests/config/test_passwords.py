"""A password in an address works, and is never shown or written."""

import json

import pytest

from rlctl.config import Loaded, load
from rlctl.config.base import masked
from rlctl.config.explain import explain, flat
from rlctl.errors import ConfigError

URL = "rediss://user:pa:ss@word@10.0.0.7:6380/2"


def loaded(*overrides: str, **environ: str) -> Loaded:
    return load([], ['model.init="tiny"', *overrides], environ=environ)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, "rediss://user:***@10.0.0.7:6380/2"),
        ("redis://user:a/b@c@host/0", "redis://user:***@host/0"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("redis://host:6379/0?password=secret&x=1", "redis://host:6379/0?password=***&x=1"),
        ("redis://user@host:6379/0", "redis://user@host:6379/0"),
        ("tcp://10.0.0.1:7001", "tcp://10.0.0.1:7001"),
        ("-s pool.url=redis://a:b@c", "-s pool.url=redis://a:***@c"),
    ],
)
def test_passwords_in_addresses_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_the_configuration_has_it_and_shows_it_nowhere() -> None:
    for one in (loaded(f"pool.url={URL}"), loaded(RLCTL__POOL__URL=URL)):
        assert one.config.pool.url == URL
        shown = [one.toml(), json.dumps(one.config.model_dump(mode="json")), str(flat(one.config)), str(one.places)]
        assert not any("word" in text for text in (*shown, str(explain("pool.url", one))))
        assert "rediss://user:***@10.0.0.7:6380/2" in one.toml()


def test_an_error_about_it_does_not_show_it() -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("pool.url=http://user:secret@10.0.0.7:6380", "pool.redis_wait_s=redis://:secret@host")
    assert "an address is tcp://HOST:PORT, redis://HOST:PORT/DB or rediss://HOST:PORT/DB" in str(caught.value)
    assert "pool.redis_wait_s" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://user:sec/ret@host:1/0", "redis://host:sixty/0", "redis:///0"])
def test_an_address_that_cannot_be_read_is_an_error_that_does_not_show_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"pool\.url: host or port cannot be read") as caught:
        loaded(f"pool.url={url}")
    assert "sec" not in str(caught.value)


def test_clients_ask_the_pool_not_redis() -> None:
    config = loaded(f"pool.url={URL}", "pool.host=10.0.0.1", "pool.port=7001").config
    assert config.pool_url == "tcp://10.0.0.1:7001"
    assert config.pool.in_redis
    for url in ("tcp://10.0.0.9:7001", "tcp://10.0.0.9:7001,tcp://10.0.0.8:7001"):
        elsewhere = loaded(f"pool.url={url}").config
        assert elsewhere.pool_url == url
        assert elsewhere.pool.elsewhere
        assert not elsewhere.pool.in_redis
