package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	workSubject = "work"
	prefetch    = 1000
)

// workQueue is a stream of R3 from which what is acknowledged goes, with one durable consumer, R3 as well: what it has
// acknowledged is known to a majority. Producer and consumer have a connection each.
type workQueue struct {
	load     *load
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer
	acked    atomic.Uint64
	refused  atomic.Uint64
}

func openWorkQueue(l *load, byName map[string]string) (*workQueue, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	config := jetstream.StreamConfig{
		Name: workSubject, Subjects: []string{workSubject}, Replicas: 3, Storage: jetstream.FileStorage,
		Retention: jetstream.WorkQueuePolicy,
	}
	leader, err := createStream(ctx, byName, config)
	if err != nil {
		return nil, fmt.Errorf("no work queue with three copies within %v: %w", startTime, err)
	}
	publishing, err := nats.Connect(byName[leader])
	if err != nil {
		return nil, err
	}
	consuming, err := nats.Connect(byName[leader])
	if err != nil {
		return nil, err
	}
	queue := &workQueue{load: l}
	queue.js, err = jetstream.New(publishing,
		jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncAckHandler(func(jetstream.JetStream, *nats.Msg, *jetstream.PubAck) { queue.acked.Add(1) }),
		jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) { queue.refused.Add(1) }))
	if err != nil {
		return nil, err
	}
	if queue.stream, err = queue.js.Stream(ctx, workSubject); err != nil {
		return nil, err
	}
	reading, err := jetstream.New(consuming)
	if err != nil {
		return nil, err
	}
	queue.consumer, err = reading.CreateOrUpdateConsumer(ctx, workSubject, jetstream.ConsumerConfig{
		Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: prefetch, Replicas: 3,
	})
	return queue, err
}

// work publishes with at most maxPending unconfirmed, and at the same time takes and acknowledges each message. What
// was taken in the measured time is counted, and all that was published has to come and to go.
func (q *workQueue) work() (outcome, error) {
	var taken atomic.Uint64
	reading, err := q.consumer.Consume(func(message jetstream.Msg) {
		if message.Ack() == nil {
			taken.Add(1)
		}
	}, jetstream.PullMaxMessages(prefetch))
	if err != nil {
		return outcome{}, err
	}
	defer reading.Stop()
	var sent, takenAtBegin uint64
	started := time.Now()
	begin := started
	for time.Since(started) < q.load.warm+q.load.measure {
		if begin == started && time.Since(started) >= q.load.warm {
			begin, takenAtBegin = time.Now(), taken.Load()
		}
		for range 64 {
			if _, err := q.js.PublishAsync(workSubject, q.load.bodies[sent%bodyCount], jetstream.WithStallWait(answerTime)); err != nil {
				return outcome{}, err
			}
			sent++
		}
	}
	count, measured := taken.Load()-takenAtBegin, time.Since(begin).Seconds()
	if err := q.wait(func() bool { return q.acked.Load() == sent && taken.Load() == sent && q.isEmpty() }); err != nil {
		return outcome{}, fmt.Errorf("%d sent, %d confirmed, %d refused, %d taken: %w", sent, q.acked.Load(), q.refused.Load(), taken.Load(), err)
	}
	return outcome{
		Workload: "W6", Variant: fmt.Sprintf("PublishAsync, %d pending, ack of each, %d in hand", maxPending, prefetch),
		Count: count, Seconds: measured, Sent: sent, Confirmed: q.acked.Load(), Stored: taken.Load(),
	}, nil
}

// oneByOne publishes a message, takes it, and acknowledges it with an answer, before the next one.
func (q *workQueue) oneByOne() (delivered, acked outcome, err error) {
	messages, err := q.consumer.Messages(jetstream.PullMaxMessages(1))
	if err != nil {
		return outcome{}, outcome{}, err
	}
	defer messages.Stop()
	var toDelivery, toAck []float64
	warmAgain := min(q.load.warm, 2*time.Second)
	var sent uint64
	for started := time.Now(); time.Since(started) < warmAgain+q.load.measure; sent++ {
		handedOver := time.Now()
		confirm, err := q.js.PublishAsync(workSubject, q.load.bodies[sent%bodyCount])
		if err != nil {
			return outcome{}, outcome{}, err
		}
		message, err := messages.Next()
		if err != nil {
			return outcome{}, outcome{}, err
		}
		taken := time.Now()
		if err := message.DoubleAck(context.Background()); err != nil {
			return outcome{}, outcome{}, err
		}
		answered := time.Now()
		select {
		case <-confirm.Ok():
		case err := <-confirm.Err():
			return outcome{}, outcome{}, err
		case <-time.After(answerTime):
			return outcome{}, outcome{}, errors.New("a message was taken and never confirmed")
		}
		if time.Since(started) >= warmAgain {
			toDelivery = append(toDelivery, float64(taken.Sub(handedOver).Nanoseconds())/1e3)
			toAck = append(toAck, float64(answered.Sub(taken).Nanoseconds())/1e3)
		}
	}
	result := func(what string, latencies []float64) outcome {
		return outcome{
			Workload: "W7", Variant: what, P50: percentile(latencies, 0.50), P99: percentile(latencies, 0.99),
			Sent: sent, Confirmed: sent, Stored: sent,
		}
	}
	return result("delivered", toDelivery), result("acked, DoubleAck", toAck), nil
}

func (q *workQueue) isEmpty() bool {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	info, err := q.stream.Info(ctx)
	return err == nil && info.State.Msgs == 0
}

func (q *workQueue) wait(met func() bool) error {
	for deadline := time.Now().Add(answerTime); !met(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not so after %v", answerTime)
		}
	}
	return nil
}
