package benchmarks;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.generated.KillOptions;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.ShellBolt;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.BasicOutputCollector;
import org.apache.storm.topology.IRichBolt;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseBasicBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * Runs two topologies in Storm, with one executor per component: a spout, a bolt that splits, and one that counts; and a
 * spout, a bolt that splits, one that makes lower case, and one that takes the words.
 *
 * <p>Arguments: seconds of warm-up, seconds of a window, windows, and then modes. A mode is "java" or "multilang",
 * "-tracked" or "-untracked", and "lower-" before that for the second topology. In multilang the bolts are Python programs: "$python $programs split", and "count".
 * Each window prints a line: mode, sentences per second, and failed ones.
 */
public final class Words {
    private static final LongAdder SENTENCES = new LongAdder();
    private static final LongAdder FAILED = new LongAdder();

    private Words() {}

    public static final class Sentences extends BaseRichSpout {
        private static final String[] TEXTS = {
            "the cow jumped over the moon", "an apple a day keeps the doctor away", "four score and seven years ago",
            "snow white and the seven dwarfs", "i am at two with nature",
        };
        private transient SpoutOutputCollector collector;
        private final boolean tracked;
        private long next;

        Sentences(boolean tracked) {
            this.tracked = tracked;
        }

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
        }

        @Override
        public void nextTuple() {
            Values values = new Values(TEXTS[(int) (next % TEXTS.length)]);
            collector.emit(values, tracked ? (Object) next : null);
            next++;
        }

        @Override
        public void ack(Object id) {
            SENTENCES.increment();
        }

        @Override
        public void fail(Object id) {
            FAILED.increment();
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("sentence"));
        }
    }

    public static final class Split extends BaseBasicBolt {
        @Override
        public void execute(Tuple tuple, BasicOutputCollector collector) {
            for (String word : tuple.getString(0).split(" ")) {
                collector.emit(new Values(word));
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }
    }

    public static final class Count extends BaseBasicBolt {
        private final Map<String, Long> counts = new HashMap<>();

        @Override
        public void execute(Tuple tuple, BasicOutputCollector collector) {
            String word = tuple.getString(0);
            collector.emit(new Values(word, counts.merge(word, 1L, Long::sum)));
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word", "count"));
        }
    }

    public static final class Lower extends BaseBasicBolt {
        @Override
        public void execute(Tuple tuple, BasicOutputCollector collector) {
            collector.emit(new Values(tuple.getString(0).toLowerCase()));
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }
    }

    /** A bolt that is a Python program. */
    public static final class Program extends ShellBolt implements IRichBolt {
        private final String[] fields;

        Program(String name, String... fields) {
            super(System.getProperty("python"), System.getProperty("programs"), name);
            changeChildCWD(false);
            this.fields = fields;
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields(fields));
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return null;
        }
    }

    /** Takes the words. It counts those of an untracked run, which has no acks: 6.4 words to a sentence. */
    public static final class End extends BaseBasicBolt {
        private final boolean counts;

        End(boolean counts) {
            this.counts = counts;
        }

        @Override
        public void execute(Tuple tuple, BasicOutputCollector collector) {
            if (counts) {
                SENTENCES.increment();
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {}
    }

    public static void main(String[] args) throws Exception {
        long warmUp = Long.parseLong(args[0]);
        long window = Long.parseLong(args[1]);
        int windows = Integer.parseInt(args[2]);
        try (LocalCluster cluster = new LocalCluster.Builder()
                .withSupervisors(1).withPortsPerSupervisor(2)
                .withDaemonConf(Config.TOPOLOGY_ENABLE_MESSAGE_TIMEOUTS, true).build()) {
            for (int at = 3; at < args.length; at++) {
                run(cluster, args[at], warmUp, window, windows);
            }
        }
        System.exit(0);
    }

    private static void run(LocalCluster cluster, String mode, long warmUp, long window, int windows) throws Exception {
        boolean tracked = mode.endsWith("-tracked");
        boolean multilang = mode.contains("multilang");
        boolean lower = mode.startsWith("lower-");
        String last = lower ? "lower" : "count";
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("sentences", new Sentences(tracked), 1);
        if (multilang) {
            builder.setBolt("split", new Program("split", "word"), 1).shuffleGrouping("sentences");
            Program program = lower ? new Program("lower", "word") : new Program("count", "word", "count");
            builder.setBolt(last, program, 1).fieldsGrouping("split", new Fields("word"));
        } else {
            builder.setBolt("split", new Split(), 1).shuffleGrouping("sentences");
            builder.setBolt(last, lower ? new Lower() : new Count(), 1).fieldsGrouping("split", new Fields("word"));
        }
        if (lower || !tracked) {
            builder.setBolt("end", new End(!tracked), 1).shuffleGrouping(last);
        }
        Config config = new Config();
        config.setNumWorkers(1);
        config.setNumAckers(tracked ? 1 : 0);
        config.setMaxSpoutPending(5000);
        config.setMessageTimeoutSecs(120);
        SENTENCES.reset();
        FAILED.reset();
        cluster.submitTopology(mode, config, builder.createTopology());
        long started = System.nanoTime();
        while (SENTENCES.sum() == 0 && System.nanoTime() - started < 60_000_000_000L) {
            Thread.sleep(50);
        }
        Thread.sleep(warmUp * 1000);
        double perSentence = tracked ? 1.0 : 6.4;
        for (int number = 0; number < windows; number++) {
            long before = SENTENCES.sum();
            long began = System.nanoTime();
            Thread.sleep(window * 1000);
            double perSecond = (SENTENCES.sum() - before) / perSentence / ((System.nanoTime() - began) / 1e9);
            System.out.printf("%s %.1f %d%n", mode, perSecond, FAILED.sum());
        }
        KillOptions now = new KillOptions();
        now.set_wait_secs(0);
        cluster.killTopologyWithOpts(mode, now);
        Thread.sleep(5000);
    }
}
