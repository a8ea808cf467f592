"""Count words. Equal words reach the same task, and a line is acked when its last word was counted.

Prints:
    counted: cat 2, dog 2, the 4
    acked: [1, 2, 3]
"""

from acker_redis.storm import Bolt, FeederSpout, Grouping, StatefulBolt, Topology


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup):
        for word in tup.values.line.split():
            self.emit([word])  # anchored to the line


class Count(StatefulBolt):
    outputs = ["word", "n"]

    def process(self, tup):
        self.state[tup.values.word] = n = self.state.get(tup.values.word, 0) + 1
        self.emit([tup.values.word, n])


class WordCount(Topology):
    lines = FeederSpout(["line"]).spec()
    split = Split.spec(inputs=[lines], par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=4)


with WordCount.local() as run:
    for number, line in enumerate(["the cat", "the dog", "the cat the dog"], 1):
        run.feed("lines", [line], tup_id=number)
    run.settle()
    print("counted:", ", ".join(f"{word} {n}" for word, n in sorted(dict(run.emitted("count")).items())))
    print("acked:", sorted(run.acked("lines")))
