"""Kafka's client: its settings, which of them are allowed, and its import. Needs the extra `kafka`.

    client      the import of confluent-kafka, and errors without secrets
    producer    the settings of a producer whose delivery reports prove the rows
    consumer    the settings of a member of a consumer group

    record_ids          message ids of records
    commit_metadata     the text of a commit
    partition_progress  what is done in a partition, and what its commit says
    record_budget       the limit on the bytes of records that aren't done
    topics              ids and partitions of topics
    assignment          partitions that a member gets, and where they begin
    group_member        the member of a group: assignments, records, commits
    letter_topic        dead letters as records of a topic
    record_reader       single records, for replays of dead letters

No module imports confluent-kafka before it is used.
"""
