"""The LRU cache: what it keeps, what it evicts, and that an error leaves nothing behind."""

import pytest

from regard.support.lru import LRUCache


def test_the_least_recently_used_value_is_evicted():
    cache = LRUCache(2)
    for key in ("a", "b", "a", "c"):  # "b" was used before "a"
        cache.get(key, lambda: 1)
    assert len(cache) == 2
    assert [cache.get(key, lambda: 2) for key in ("c", "a", "b")] == [1, 1, 2]


def test_an_error_is_not_cached():
    cache = LRUCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 / 0)
    assert cache.get("a", lambda: 1.0) == 1.0


def test_values_are_evicted_until_their_bytes_fit():
    cache = LRUCache(8, max_bytes=10)
    for key, nbytes in (("a", 4), ("b", 3), ("c", 3), ("b", 2)):  # which is used last, and smaller
        cache.store(key, key, nbytes)
    cache.store("d", "d", 5)
    assert [key for key in "abcd" if key in cache] == ["b", "c", "d"]
    cache.store("e", "e", 10)
    assert [key for key in "abcde" if key in cache] == ["e"]
    cache.store("f", "f", 10)
    assert "f" in cache
    cache.store("g", "g", 11)  # more than all that it may hold
    assert [key for key in "fg" if key in cache] == ["f"]
