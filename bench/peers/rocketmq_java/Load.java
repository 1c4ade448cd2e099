import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Load for RocketMQ: W1 by batches and by single records, W2 and W3 on one topic. Prints a JSON object per figure, as
 * bench/peers/outcome.py describes. Only SEND_OK counts as a confirm: the other results mean that the slave is missing.
 */
public final class Load {
    private static final String TOPIC = "bench";
    private static final int RECORD_BYTES = 1024;
    private static final int BODIES = 1000;
    private static final int BATCH = 32;
    private static final int BATCHES_PENDING = 16;
    private static final int SINGLES_PENDING = 1000;
    private static final long ANSWER_SECONDS = 20;
    private static final long START_SECONDS = 60;
    private static final long WARM_AGAIN_SECONDS = 2;

    private final String servers;
    private final long warmNanos;
    /** Of the workloads after the first: they find servers that are warm already. */
    private final long warmAgainNanos;
    private final long measureNanos;
    private final byte[][] bodies = new byte[BODIES][RECORD_BYTES];
    private final DefaultMQProducer producer = new DefaultMQProducer("bench-producer");

    private Load(String servers, double warm, double measure) {
        this.servers = servers;
        this.warmNanos = (long) (warm * 1e9);
        this.warmAgainNanos = Math.min(warmNanos, TimeUnit.SECONDS.toNanos(WARM_AGAIN_SECONDS));
        this.measureNanos = (long) (measure * 1e9);
        Random random = new Random();
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
    }

    public static void main(String[] arguments) {
        List<String> given = Arrays.asList(arguments);
        int status = 1;
        try {
            Load load = new Load(
                given.get(given.indexOf("--servers") + 1),
                Double.parseDouble(given.get(given.indexOf("--warm") + 1)),
                Double.parseDouble(given.get(given.indexOf("--seconds") + 1)));
            load.run();
            status = 0;
        } catch (Throwable error) {
            System.err.println(error);
        }
        // The client leaves threads behind that would keep the process alive.
        System.exit(status);
    }

    private void run() throws Exception {
        producer.setNamesrvAddr(servers);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout((int) TimeUnit.SECONDS.toMillis(ANSWER_SECONDS));
        producer.start();
        waitForSlave();
        publish(BATCH, BATCHES_PENDING, warmNanos, "batches of 32, 16 pending");
        publish(1, SINGLES_PENDING, warmAgainNanos, "single records, 1000 pending");
        publishOneByOne();
        consume();
    }

    /** Until a record is confirmed by the slave too; that also makes the topic. */
    private void waitForSlave() throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS);
        String last = "";
        while (System.nanoTime() < deadline) {
            try {
                SendStatus status = producer.send(message(0)).getSendStatus();
                if (status == SendStatus.SEND_OK) {
                    return;
                }
                last = status.name();
            } catch (Exception error) {
                last = String.valueOf(error.getMessage()).lines().findFirst().orElse("");
            }
            Thread.sleep(100);
        }
        throw new TimeoutException("master and slave do not confirm within " + START_SECONDS + " s: " + last);
    }

    private void publish(int batch, int pending, long warmNanos, String variant) throws Exception {
        long before = stored();
        Semaphore window = new Semaphore(pending);
        AtomicLong confirmed = new AtomicLong();
        AtomicReference<String> failure = new AtomicReference<>();
        long sent = 0;
        long started = System.nanoTime();
        long begin = 0;
        long confirmedAtBegin = 0;
        while (System.nanoTime() - started < warmNanos + measureNanos && failure.get() == null) {
            if (begin == 0 && System.nanoTime() - started >= warmNanos) {
                begin = System.nanoTime();
                confirmedAtBegin = confirmed.get();
            }
            if (!window.tryAcquire(ANSWER_SECONDS, TimeUnit.SECONDS)) {
                throw new TimeoutException("no confirm for " + ANSWER_SECONDS + " s");
            }
            send(batch, sent, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        confirmed.addAndGet(batch);
                    } else {
                        failure.set(result.getSendStatus().name());
                    }
                    window.release();
                }

                @Override
                public void onException(Throwable error) {
                    failure.set(String.valueOf(error.getMessage()));
                    window.release();
                }
            });
            sent += batch;
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        long count = confirmed.get() - confirmedAtBegin;
        if (!window.tryAcquire(pending, ANSWER_SECONDS, TimeUnit.SECONDS)) {
            throw new TimeoutException((sent - confirmed.get()) + " records without an answer");
        }
        if (failure.get() != null) {
            throw new IllegalStateException((sent - confirmed.get()) + " records not confirmed: " + failure.get());
        }
        System.out.printf(Locale.ROOT,
            "{\"workload\": \"W1\", \"variant\": \"%s\", \"count\": %d, \"seconds\": %f, "
                + "\"sent\": %d, \"confirmed\": %d, \"stored\": %d}%n",
            variant, count, seconds, sent, confirmed.get(), storedAtLeast(before + sent) - before);
    }

    private void send(int batch, long number, SendCallback callback) throws Exception {
        if (batch == 1) {
            producer.send(message(number), callback);
            return;
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            messages.add(message(number + i));
        }
        producer.send(messages, callback);
    }

    private void publishOneByOne() throws Exception {
        long before = stored();
        List<Long> nanos = new ArrayList<>();
        long sent = 0;
        long started = System.nanoTime();
        for (long asked = started; asked - started < warmAgainNanos + measureNanos; asked = System.nanoTime()) {
            SendStatus status = producer.send(message(sent)).getSendStatus();
            if (status != SendStatus.SEND_OK) {
                throw new IllegalStateException("record " + sent + " not confirmed: " + status);
            }
            sent++;
            if (asked - started >= warmAgainNanos) {
                nanos.add(System.nanoTime() - asked);
            }
        }
        nanos.sort(null);
        System.out.printf(Locale.ROOT,
            "{\"workload\": \"W2\", \"p50_us\": %f, \"p99_us\": %f, \"sent\": %d, \"confirmed\": %d, \"stored\": %d}%n",
            percentile(nanos, 0.50), percentile(nanos, 0.99), sent, sent, storedAtLeast(before + sent) - before);
    }

    /** The whole topic once, with the first tenth as warm-up: reading it again would need another group each time. */
    private void consume() throws Exception {
        long backlog = stored();
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench-consumer");
        consumer.setNamesrvAddr(servers);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(BODIES);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(TOPIC));
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        long read = 0;
        long readAtBegin = 0;
        long begin = 0;
        while (read < backlog) {
            List<MessageExt> messages = consumer.poll(TimeUnit.SECONDS.toMillis(ANSWER_SECONDS));
            if (messages.isEmpty()) {
                throw new TimeoutException(read + " of " + backlog + " records read, then none");
            }
            read += messages.size();
            if (begin == 0 && read >= backlog / 10) {
                begin = System.nanoTime();
                readAtBegin = read;
            }
        }
        System.out.printf(Locale.ROOT,
            "{\"workload\": \"W3\", \"variant\": \"lite pull consumer\", \"count\": %d, \"seconds\": %f}%n",
            read - readAtBegin, (System.nanoTime() - begin) / 1e9);
    }

    /** How many records of the topic the master has made visible; that follows the confirm after a moment. */
    private long stored() throws Exception {
        long total = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(TOPIC)) {
            total += producer.maxOffset(queue);
        }
        return total;
    }

    private long storedAtLeast(long wanted) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(ANSWER_SECONDS);
        while (stored() < wanted && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        return stored();
    }

    private Message message(long number) {
        return new Message(TOPIC, bodies[(int) (number % BODIES)]);
    }

    private static double percentile(List<Long> sorted, double share) {
        return sorted.get(Math.min(sorted.size() - 1, (int) (share * sorted.size()))) / 1e3;
    }
}
