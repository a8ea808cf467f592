"""Add the tracker's columns to messages, and scale shares."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.spark import sql
from acker_redis.spark.proof.equation import Equation, note, with_columns
from acker_redis.spark.protocol import shares
from acker_redis.spark.protocol.columns import ROOTS, SHARE
from acker_redis.spark.sql import quoted


def tracked(messages: DataFrame, id_column: str, salts: tuple[str, str], equation: Equation) -> DataFrame:
    """Add share and root to messages, in SQL.

    `root_ids` and `emission.roots.shares_of` derive the same values in the driver.
    """
    root_salt, share_salt = map(sql.literal, salts)
    message = f"cast({quoted(id_column)} AS bigint)"
    block = f"xxhash64({root_salt}, shiftright({message}, 5)) & {(1 << 59) - 1}L"
    root = f"shiftleft({message} & 31L, 59) | ({block})"
    share = f"xxhash64({share_salt}, {message}) & {shares.MASK}L"
    return note(with_columns(messages, {SHARE: share, ROOTS: f"array({root})"}, equation), equation)


def scaled(frame: DataFrame, exponent: int) -> DataFrame:
    """Multiply the shares of rows by `shares.weight(exponent)`."""
    return frame.withColumn(SHARE, F.expr(shares.scale_in_sql(SHARE, exponent)))


def roots_in_sql(row: str = "") -> str:
    """Return SQL for the roots of a row.

    For a row that has lost its roots, that is root 0, which no message has. If the row fails, the loss shows.

    Args:
        row: prefix of the columns' names.
    """
    lost = f"coalesce(size({row}{ROOTS}), 0) < 1 AND coalesce({row}{SHARE}, 0L) <> 0L"
    return f"IF({lost}, array(0L), coalesce({row}{ROOTS}, cast(array() AS array<bigint>)))"
