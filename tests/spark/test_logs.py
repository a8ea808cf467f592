"""What PySpark logs, in the tests' own process."""

import logging
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error with a logger, before pytest adds its handlers for the test itself."""
    error, place = PySparkException("text"), Mock()
    place.contextType().name = "SQL"
    monkeypatch.setattr(error, "getQueryContext", lambda: [place])
    error._log_exception()
    known = logging.root.manager.loggerDict.values()
    assert [one.name for one in known if isinstance(one, PySparkLogger) and not one.propagate]


@pytest.mark.usefixtures("failed")
def test_errors_of_pyspark_leave_the_format_of_records(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("acker_redis").warning("rows='late'")
    assert caplog.text.startswith("WARNING ") and caplog.text.endswith(" rows='late'\n")
