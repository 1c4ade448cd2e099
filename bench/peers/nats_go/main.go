// Load for NATS JetStream: W1, W2 and W3 on one stream of R3 with file storage, W6 and W7 on another one, which is a
// work queue. Prints a JSON object per figure, as bench/peers/outcome.py describes.
//
// It publishes to and reads from the server that leads the stream: a hop less than through any other one.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	subject     = "go"
	recordBytes = 1024
	bodyCount   = 1000
	maxPending  = 4096
	startTime   = 60 * time.Second
	answerTime  = 20 * time.Second
)

type outcome struct {
	Workload  string  `json:"workload"`
	Variant   string  `json:"variant"`
	Count     uint64  `json:"count,omitempty"`
	Seconds   float64 `json:"seconds,omitempty"`
	P50       float64 `json:"p50_us,omitempty"`
	P99       float64 `json:"p99_us,omitempty"`
	Sent      uint64  `json:"sent,omitempty"`
	Confirmed uint64  `json:"confirmed,omitempty"`
	Stored    uint64  `json:"stored,omitempty"`
}

type load struct {
	js              jetstream.JetStream
	stream          jetstream.Stream
	bodies          [][]byte
	warm, measure   time.Duration
	acked, notAcked atomic.Uint64
}

func main() {
	servers := flag.String("servers", "", "comma-separated name=url of all servers")
	warm := flag.Float64("warm", 1, "seconds of warm-up of the first workload, of the second at most 2")
	measure := flag.Float64("seconds", 4, "seconds measured of each workload")
	flag.Parse()
	run := &load{bodies: randomBodies(), warm: seconds(*warm), measure: seconds(*measure)}
	if err := run.open(urls(*servers)); err != nil {
		log.Fatal(err)
	}
	for _, workload := range []func() (outcome, error){run.publish, run.publishOneByOne, run.consume} {
		report(workload())
	}
	queue, err := openWorkQueue(run, urls(*servers))
	if err != nil {
		log.Fatal(err)
	}
	report(queue.work())
	delivered, acked, err := queue.oneByOne()
	report(delivered, err)
	report(acked, err)
}

func report(result outcome, err error) {
	if err != nil {
		log.Fatal(err)
	}
	line, _ := json.Marshal(result)
	fmt.Fprintln(os.Stdout, string(line))
}

// open makes the stream and connects to its leader.
func (l *load) open(byName map[string]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	config := jetstream.StreamConfig{Name: subject, Subjects: []string{subject}, Replicas: 3, Storage: jetstream.FileStorage}
	leader, err := createStream(ctx, byName, config)
	if err != nil {
		return fmt.Errorf("no stream with three copies within %v: %w", startTime, err)
	}
	connection, err := nats.Connect(byName[leader])
	if err != nil {
		return err
	}
	l.js, err = jetstream.New(connection,
		jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncAckHandler(func(jetstream.JetStream, *nats.Msg, *jetstream.PubAck) { l.acked.Add(1) }),
		jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) { l.notAcked.Add(1) }))
	if err != nil {
		return err
	}
	l.stream, err = l.js.Stream(ctx, subject)
	return err
}

// createStream tries until the servers have found each other; the name of the stream's leader.
func createStream(ctx context.Context, byName map[string]string, config jetstream.StreamConfig) (string, error) {
	all := make([]string, 0, len(byName))
	for _, url := range byName {
		all = append(all, url)
	}
	connection, err := nats.Connect(strings.Join(all, ","))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		return "", err
	}
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		stream, err := js.CreateOrUpdateStream(try, config)
		cancel()
		if err == nil && ready(stream.CachedInfo()) {
			return stream.CachedInfo().Cluster.Leader, nil
		}
		if ctx.Err() != nil {
			return "", errors.Join(ctx.Err(), err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// ready: with a leader and both followers current, so that a confirm really is three copies from the first record on.
func ready(info *jetstream.StreamInfo) bool {
	if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != 2 {
		return false
	}
	return info.Cluster.Replicas[0].Current && info.Cluster.Replicas[1].Current
}

func (l *load) publish() (outcome, error) {
	before, err := l.stored()
	if err != nil {
		return outcome{}, err
	}
	var sent, ackedAtBegin uint64
	started := time.Now()
	begin := started
	for time.Since(started) < l.warm+l.measure {
		if ackedAtBegin == 0 && time.Since(started) >= l.warm {
			begin, ackedAtBegin = time.Now(), l.acked.Load()
		}
		for range 64 {
			body := l.bodies[sent%bodyCount]
			if _, err := l.js.PublishAsync(subject, body, jetstream.WithStallWait(answerTime)); err != nil {
				return outcome{}, err
			}
			sent++
		}
	}
	count, taken := l.acked.Load()-ackedAtBegin, time.Since(begin).Seconds()
	select {
	case <-l.js.PublishAsyncComplete():
	case <-time.After(answerTime):
		return outcome{}, fmt.Errorf("%d records without an answer after %v", l.js.PublishAsyncPending(), answerTime)
	}
	after, err := l.stored()
	return outcome{
		Workload: "W1", Variant: fmt.Sprintf("PublishAsync, %d pending", maxPending), Count: count, Seconds: taken,
		Sent: sent, Confirmed: l.acked.Load(), Stored: after - before,
	}, err
}

func (l *load) publishOneByOne() (outcome, error) {
	before, err := l.stored()
	if err != nil {
		return outcome{}, err
	}
	var sent uint64
	var latencies []float64
	warmAgain := min(l.warm, 2*time.Second)
	for started := time.Now(); time.Since(started) < warmAgain+l.measure; sent++ {
		asked := time.Now()
		if _, err := l.js.Publish(context.Background(), subject, l.bodies[sent%bodyCount]); err != nil {
			return outcome{}, err
		}
		if time.Since(started) >= warmAgain {
			latencies = append(latencies, float64(time.Since(asked).Nanoseconds())/1e3)
		}
	}
	after, err := l.stored()
	return outcome{
		Workload: "W2", P50: percentile(latencies, 0.50), P99: percentile(latencies, 0.99),
		Sent: sent, Confirmed: sent, Stored: after - before,
	}, err
}

// consume reads the whole stream, again and again; an ordered consumer has no acknowledgements and no copies.
func (l *load) consume() (outcome, error) {
	backlog, err := l.stored()
	if err != nil {
		return outcome{}, err
	}
	var count uint64
	var taken time.Duration
	for taken < l.measure {
		pass, err := l.readAll(backlog)
		if err != nil {
			return outcome{}, err
		}
		count, taken = count+backlog, taken+pass
	}
	return outcome{Workload: "W3", Variant: "ordered pull consumer", Count: count, Seconds: taken.Seconds()}, nil
}

// readAll gives the time from the first record of the stream to its last.
func (l *load) readAll(backlog uint64) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*answerTime)
	defer cancel()
	consumer, err := l.js.OrderedConsumer(ctx, subject, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return 0, err
	}
	var read, bytes uint64
	var begin time.Time
	done := make(chan time.Duration, 1)
	reading, err := consumer.Consume(func(message jetstream.Msg) {
		if read == 0 {
			begin = time.Now()
		}
		read++
		bytes += uint64(len(message.Data()))
		if read == backlog {
			done <- time.Since(begin)
		}
	}, jetstream.PullMaxMessages(pullMessages))
	if err != nil {
		return 0, err
	}
	defer reading.Stop()
	select {
	case taken := <-done:
		if bytes != backlog*recordBytes {
			return 0, fmt.Errorf("%d records of %d bytes came as %d bytes", backlog, recordBytes, bytes)
		}
		return taken, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%d of %d records read: %w", read, backlog, ctx.Err())
	}
}

const pullMessages = 5000

func (l *load) stored() (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	info, err := l.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return info.State.Msgs, nil
}

func randomBodies() [][]byte {
	bodies := make([][]byte, bodyCount)
	for i := range bodies {
		bodies[i] = make([]byte, recordBytes)
		_, _ = rand.Read(bodies[i])
	}
	return bodies
}

func percentile(values []float64, share float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sort.Float64s(values)
	return values[min(len(values)-1, int(share*float64(len(values))))]
}

func urls(servers string) map[string]string {
	byName := map[string]string{}
	for _, server := range strings.Split(servers, ",") {
		name, url, _ := strings.Cut(server, "=")
		byName[name] = url
	}
	return byName
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
