"""Report a rate at every tick. Ticks come on time, with or without tuples.

Prints:
    10 s: 3 clicks
    20 s: 1 clicks
    30 s: 0 clicks
"""

from acker_redis.storm import Bolt, FeederSpout, Topology


class Rate(Bolt):
    outputs = ["clicks"]

    def initialize(self, conf, context):
        self.clicks = 0

    def process(self, tup):
        self.clicks += 1

    def process_tick(self, tup):
        self.emit([self.clicks])  # a tick is not tracked, so this tuple isn't either
        self.clicks = 0


class Clicks(Topology):
    clicks = FeederSpout(["page"]).spec()
    rate = Rate.spec(inputs=[clicks], config={"topology.tick.tuple.freq.secs": 10})


with Clicks.local() as run:
    for pages in (["home", "news", "home"], ["home"], []):
        for page in pages:
            run.feed("clicks", [page])
        run.advance(10)
        print(f"{run.now_secs:g} s: {run.emitted('rate')[-1].clicks} clicks")
