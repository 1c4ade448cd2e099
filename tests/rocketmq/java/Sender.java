import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages by RocketMQ's own client: Sender NAMESERVER FIRST COUNT TOPICS PENDING. Number n goes to topic
 * orders-(n mod TOPICS) with key k-n, tag t-(n mod 3) and a property; one of 100 is delayed by a level. It prints how many
 * ended in which way, and how long each took (median, microseconds).
 */
public final class Sender {
    public static void main(String[] given) throws Exception {
        long first = Long.parseLong(given[1]);
        int count = Integer.parseInt(given[2]);
        int topics = Integer.parseInt(given[3]);
        int pending = Integer.parseInt(given[4]);
        DefaultMQProducer producer = new DefaultMQProducer("sender");
        producer.setNamesrvAddr(given[0]);
        producer.setSendMsgTimeout(20_000);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        Map<String, AtomicLong> ends = new ConcurrentHashMap<>();
        long[] tookNanos = new long[count];
        Semaphore room = new Semaphore(pending);
        for (int at = 0; at < count; at++) {
            long number = first + at;
            byte[] body = String.format(Locale.ROOT, "{\"n\": %d, \"text\": \"%s\"}", number, "x".repeat((int) (number % 200))).getBytes();
            Message message = new Message("orders-" + number % topics, "t-" + number % 3, "k-" + number, body);
            message.putUserProperty("number", Long.toString(number));
            if (number % 100 == 99) {
                message.setDelayTimeLevel(1);
            }
            room.acquire();
            int slot = at;
            long begun = System.nanoTime();
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    done(result.getSendStatus().name());
                }

                @Override
                public void onException(Throwable error) {
                    done(error.getClass().getSimpleName());
                }

                private void done(String end) {
                    tookNanos[slot] = System.nanoTime() - begun;
                    ends.computeIfAbsent(end, unused -> new AtomicLong()).incrementAndGet();
                    room.release();
                }
            });
        }
        if (!room.tryAcquire(pending, 60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not all sends have ended");
        }
        producer.shutdown();
        java.util.Arrays.sort(tookNanos);
        StringBuilder told = new StringBuilder("{");
        for (Map.Entry<String, AtomicLong> end : new TreeMap<>(ends).entrySet()) {
            told.append('"').append(end.getKey()).append("\": ").append(end.getValue()).append(", ");
        }
        System.out.println(told + "\"median_us\": " + tookNanos[count / 2] / 1000 + "}");
        System.exit(0);
    }
}
