// The copier of ../copier.py, with franz-go: the same arguments, the same lines on standard output, the same
// end. A copier that another one has fenced ends with code 3.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	fenced   = 3
	aborts   = 0.1
	patience = 10 * time.Second
)

type copier struct {
	bootstrap, group, source, target, id string
	partitions, attempts                 int
	name                                 string
	isOver                               atomic.Bool
}

func say(what map[string]any) {
	line, _ := json.Marshal(what)
	fmt.Println(string(line))
}

func note(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
}

func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

func (c *copier) session() (*kgo.GroupTransactSession, error) {
	return kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(c.bootstrap, ",")...),
		kgo.TransactionalID(c.id),
		kgo.TransactionTimeout(6*time.Second),
		kgo.ConsumerGroup(c.group),
		kgo.ConsumeTopics(c.source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(3*time.Second),
		kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(patience),
		kgo.FetchMaxWait(200*time.Millisecond),
	)
}

// copy copies the records of one poll in one transaction. An error leaves the outcome unknown.
func (c *copier) copy(session *kgo.GroupTransactSession, records []*kgo.Record) error {
	c.attempts++
	name := fmt.Sprintf("%s.%d", c.name, c.attempts)
	places := make([][2]int64, len(records))
	for i, record := range records {
		places[i] = [2]int64{int64(record.Partition), record.Offset}
	}
	say(map[string]any{"attempt": name, "places": places})
	if err := session.Begin(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	first := kgo.AbortingFirstErrPromise(session.Client())
	for _, record := range records {
		number, _ := strconv.Atoi(string(record.Key))
		value := fmt.Sprintf("%d %d %s %s", record.Partition, record.Offset, name, record.Value)
		session.Produce(ctx, &kgo.Record{
			Topic: c.target, Partition: int32(number / 2 % c.partitions), Key: record.Key, Value: []byte(value),
		}, first.Promise())
	}
	err := first.Err()
	if err != nil {
		note("%s: %v", name, err)
	}
	isWanted := err == nil && mathrand.Float64() >= aborts
	isCommitted, err := session.End(context.Background(), kgo.TransactionEndTry(isWanted))
	if err != nil {
		return err
	}
	outcome := "aborted"
	if isCommitted {
		outcome = "committed"
	}
	say(map[string]any{"outcome": outcome, "of": name})
	return nil
}

// run copies with one session until it is over or fails.
func (c *copier) run() error {
	session, err := c.session()
	if err != nil {
		return err
	}
	defer session.Close()
	for !c.isOver.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := session.PollRecords(ctx, []int{1, 10, 100}[mathrand.Intn(3)])
		cancel()
		if records := fetches.Records(); len(records) > 0 {
			if err := c.copy(session, records); err != nil {
				return err
			}
		}
	}
	return nil
}

func main() {
	words := os.Args[1:]
	partitions, err := strconv.Atoi(words[4])
	if err != nil {
		panic(err)
	}
	suffix := make([]byte, 4)
	rand.Read(suffix)
	c := &copier{
		bootstrap: words[0], group: words[1], source: words[2], target: words[3], id: words[5],
		partitions: partitions,
		name:       words[5] + "." + hex.EncodeToString(suffix),
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		c.isOver.Store(true)
	}()
	for !c.isOver.Load() {
		err := c.run()
		if isFenced(err) {
			note("fenced: %v", err)
			os.Exit(fenced)
		}
		if err != nil {
			note("%s starts again: %v", c.name, err)
			time.Sleep(50 * time.Millisecond)
		}
	}
}
