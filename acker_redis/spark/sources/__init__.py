"""Sources: files (`files`, read by `readers`), Redis streams (`redis_stream`), rows of other programs (`imports`)."""
