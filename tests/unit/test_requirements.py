"""What a session must have, told from its settings alone."""

from __future__ import annotations

import pytest

from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.host.requirements import FILE_MANAGER, KEEPS_OLD_FILES, LOCAL_FILES, check_streaming


def test_a_session_that_would_keep_the_state_of_a_first_run_is_refused() -> None:
    given = {FILE_MANAGER: f"org.apache.spark.sql.execution.streaming.{KEEPS_OLD_FILES}"}
    with pytest.raises(ConfigError, match=r"the session has .*first run.*Unset it"):
        check_streaming(given.get)
    check_streaming({**given, LOCAL_FILES: "org.apache.hadoop.fs.LocalFileSystem"}.get)
    check_streaming({}.get)
