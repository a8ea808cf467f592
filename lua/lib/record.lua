-- record: what the flags byte of a ledger record says. Only an owned root settles. A closed one failed: its outcome is
-- written, and the record stays until its time is over, so that later updates of the root are known for what they are.
local WAITING, OWNED, FAILED, CLOSED = 0, 1, 2, 3
