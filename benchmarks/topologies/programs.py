"""Bolts as Storm's multilang runs them, with pystorm: programs.py split, programs.py count or programs.py lower."""

import sys

from pystorm.bolt import Bolt


class Split(Bolt):  # type: ignore[misc]
    def process(self, tup):
        for word in tup.values[0].split():
            self.emit([word])


class Count(Bolt):  # type: ignore[misc]
    def initialize(self, conf, context):
        self.counts = {}

    def process(self, tup):
        word = tup.values[0]
        self.counts[word] = count = self.counts.get(word, 0) + 1
        self.emit([word, count])


class Lower(Bolt):  # type: ignore[misc]
    def process(self, tup):
        self.emit([tup.values[0].lower()])


PROGRAMS: dict[str, type[Bolt]] = {"split": Split, "count": Count, "lower": Lower}
PROGRAMS[sys.argv[1]]().run()
