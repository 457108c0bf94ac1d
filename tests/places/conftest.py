"""A test that sends to a broker needs a client that `make test-places` installs and `make test` does not."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("confluent_kafka") else ["test_kafka.py"]
