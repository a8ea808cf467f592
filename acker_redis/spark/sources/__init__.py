"""Sources of messages: `files`, whose records `file_formats`, `parsing` and `ambiguous_json` read; and `dead_letters`."""
