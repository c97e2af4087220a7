// franz-go, as an application uses it, as far as the tests of secured clusters ask; the protocol is that of
// stdio.py.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 45 * time.Second

// arguments has those of all commands.
type arguments struct {
	Command         string   `json:"command"`
	Bootstrap       string   `json:"bootstrap"`
	Topic           string   `json:"topic"`
	Topics          []string `json:"topics"`
	Group           string   `json:"group"`
	Partition       int32    `json:"partition"`
	Partitions      int      `json:"partitions"`
	Offset          int64    `json:"offset"`
	Count           int      `json:"count"`
	Isolation       string   `json:"isolation"`
	Records         []record `json:"records"`
	Idempotent      *bool    `json:"idempotent"`
	TimeoutS        float64  `json:"timeout_s"`
	IntervalMs      float64  `json:"interval_ms"`
	TransactionalID string   `json:"transactional_id"`
	Path            string   `json:"path"`

	access
}

type access struct {
	CaFile      string `json:"ca_file"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Certificate string `json:"certificate"`
}

type record struct {
	Topic     string  `json:"topic"`
	Partition *int32  `json:"partition"`
	Key       *string `json:"key"`
	Value     *string `json:"value"`
}

type answer = map[string]any

// -- connections --------------------------------------------------------------------------------------------

var security []kgo.Opt

func useAccess(given access) (any, error) {
	security = nil
	if given.CaFile != "" {
		trusted, err := os.ReadFile(given.CaFile)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(trusted)
		config := &tls.Config{RootCAs: roots}
		if given.Certificate != "" {
			pair, err := tls.LoadX509KeyPair(given.Certificate, given.Certificate)
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{pair}
		}
		security = append(security, kgo.DialTLSConfig(config))
	}
	if given.Mechanism != "" {
		security = append(security, kgo.SASL(mechanismOf(given)))
	}
	return nil, nil
}

func mechanismOf(given access) sasl.Mechanism {
	switch given.Mechanism {
	case "PLAIN":
		return plain.Auth{User: given.User, Pass: given.Password}.AsMechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: given.Token}.AsMechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: given.User, Pass: given.Password}.AsSha512Mechanism()
	}
	return scram.Auth{User: given.User, Pass: given.Password}.AsSha256Mechanism()
}

func newClient(bootstrap string, options ...kgo.Opt) (*kgo.Client, error) {
	all := append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, security...)
	return kgo.NewClient(append(all, options...)...)
}

func producerOptions(a arguments) []kgo.Opt {
	if a.Idempotent != nil && !*a.Idempotent {
		return []kgo.Opt{kgo.DisableIdempotentWrite()}
	}
	return nil
}

// -- records ------------------------------------------------------------------------------------------------

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	data, _ := base64.StdEncoding.DecodeString(*text)
	return data
}

func textOf(data []byte) any {
	if data == nil {
		return nil
	}
	return base64.StdEncoding.EncodeToString(data)
}

func sendAll(ctx context.Context, client *kgo.Client, records []record) []answer {
	made := make([]*kgo.Record, len(records))
	for i, one := range records {
		made[i] = &kgo.Record{Topic: one.Topic, Key: bytesOf(one.Key), Value: bytesOf(one.Value)}
		if one.Partition != nil {
			made[i].Partition = *one.Partition
		}
	}
	answers := make([]answer, len(made))
	for i, result := range client.ProduceSync(ctx, made...) {
		if result.Err != nil {
			answers[i] = answer{"error": describe(result.Err)}
		} else {
			answers[i] = answer{"partition": result.Record.Partition, "offset": result.Record.Offset}
		}
	}
	return answers
}

func produce(a arguments) (any, error) {
	client, err := newClient(a.Bootstrap, producerOptions(a)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	limit := patience
	if a.TimeoutS > 0 {
		limit = time.Duration(a.TimeoutS * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return sendAll(ctx, client, a.Records), nil
}

func levelOf(isolation string) kgo.Opt {
	if isolation == "read_committed" {
		return kgo.FetchIsolationLevel(kgo.ReadCommitted())
	}
	return kgo.FetchIsolationLevel(kgo.ReadUncommitted())
}

func fetch(a arguments) (any, error) {
	from := map[string]map[int32]kgo.Offset{a.Topic: {a.Partition: kgo.NewOffset().At(a.Offset)}}
	client, err := newClient(a.Bootstrap, kgo.ConsumePartitions(from), levelOf(a.Isolation))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found := []answer{}
	for len(found) < a.Count && ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for _, one := range fetches.Records() {
			found = append(found, answer{"offset": one.Offset, "key": textOf(one.Key), "value": textOf(one.Value)})
		}
	}
	return found[:min(len(found), a.Count)], nil
}

func listTopics(a arguments) (any, error) {
	client, err := newClient(a.Bootstrap)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return []string{}, client.Ping(ctx)
}

// -- a load until it is stopped -----------------------------------------------------------------------------

type load struct {
	sync.Mutex
	client       *kgo.Client
	sent         int
	acknowledged map[int32][][2]int64
	errors       []string
	over         chan struct{}
	done         chan struct{}
}

var currentLoad *load

func startLoad(a arguments) (any, error) {
	client, err := newClient(a.Bootstrap, append(producerOptions(a), kgo.DefaultProduceTopic(a.Topic))...)
	if err != nil {
		return nil, err
	}
	l := &load{client: client, acknowledged: map[int32][][2]int64{}, errors: []string{}}
	l.over, l.done = make(chan struct{}), make(chan struct{})
	currentLoad = l
	go func() {
		defer close(l.done)
		ticks := time.NewTicker(time.Duration(a.IntervalMs * float64(time.Millisecond)))
		defer ticks.Stop()
		for number := 0; ; number++ {
			for partition := range a.Partitions {
				l.send(int32(partition), number)
			}
			select {
			case <-l.over:
				return
			case <-ticks.C:
			}
		}
	}()
	return nil, nil
}

func (l *load) send(partition int32, number int) {
	l.Lock()
	l.sent++
	l.Unlock()
	value := fmt.Sprintf("%d:%d", partition, number)
	sent := &kgo.Record{Partition: partition, Value: []byte(value)}
	l.client.Produce(context.Background(), sent, func(written *kgo.Record, err error) {
		l.Lock()
		defer l.Unlock()
		if err != nil {
			l.errors = append(l.errors, err.Error())
			return
		}
		l.acknowledged[partition] = append(l.acknowledged[partition], [2]int64{int64(number), written.Offset})
	})
}

func (l *load) status() answer {
	l.Lock()
	defer l.Unlock()
	count := 0
	for _, places := range l.acknowledged {
		count += len(places)
	}
	return answer{"sent": l.sent, "acknowledged": count, "errors": l.errors, "failed": len(l.errors)}
}

func stopLoad(a arguments) (any, error) {
	l := currentLoad
	close(l.over)
	<-l.done
	if err := l.client.Flush(context.Background()); err != nil {
		return nil, err
	}
	l.client.Close()
	l.Lock()
	written, _ := json.Marshal(l.acknowledged)
	l.Unlock()
	return l.status(), os.WriteFile(a.Path, written, 0o600)
}

// -- a member of a group ------------------------------------------------------------------------------------

type member struct {
	sync.Mutex
	client *kgo.Client
	read   [][3]any
	errors []string
	cancel context.CancelFunc
	done   chan struct{}
}

var currentMember *member

func startMember(a arguments) (any, error) {
	client, err := newClient(a.Bootstrap,
		kgo.ConsumerGroup(a.Group),
		kgo.ConsumeTopics(a.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.SessionTimeout(6*time.Second),
	)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{client: client, read: [][3]any{}, errors: []string{}, cancel: cancel, done: make(chan struct{})}
	currentMember = m
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			m.note(client.PollFetches(ctx))
		}
		client.Close()
	}()
	return nil, nil
}

func (m *member) note(fetches kgo.Fetches) {
	m.Lock()
	defer m.Unlock()
	fetches.EachError(func(_ string, _ int32, err error) {
		if !errors.Is(err, context.Canceled) {
			m.errors = append(m.errors, err.Error())
		}
	})
	fetches.EachRecord(func(one *kgo.Record) {
		m.read = append(m.read, [3]any{one.Topic, one.Partition, one.Offset})
	})
}

func (m *member) status() answer {
	m.Lock()
	defer m.Unlock()
	return answer{"read": m.read, "errors": m.errors}
}

func commitOfMember(a arguments) (any, error) {
	return nil, currentMember.client.CommitUncommittedOffsets(context.Background())
}

func stopMember(a arguments) (any, error) {
	currentMember.cancel()
	<-currentMember.done
	return currentMember.status(), nil
}

// -- a transactional producer -------------------------------------------------------------------------------

var transactional *kgo.Client

func startTransactional(a arguments) (any, error) {
	client, err := newClient(a.Bootstrap, kgo.TransactionalID(a.TransactionalID))
	transactional = client
	return nil, err
}

func end(how kgo.TransactionEndTry) func(arguments) (any, error) {
	return func(arguments) (any, error) {
		return nil, transactional.EndTransaction(context.Background(), how)
	}
}

// -- lines in, lines out ------------------------------------------------------------------------------------

func hello(arguments) (any, error) {
	built, _ := debug.ReadBuildInfo()
	for _, module := range built.Deps {
		if module.Path == "github.com/twmb/franz-go" {
			return answer{"client": "franz-go", "version": strings.TrimPrefix(module.Version, "v")}, nil
		}
	}
	return nil, errors.New("built without franz-go")
}

func describe(err error) answer {
	var broker *kerr.Error
	if errors.As(err, &broker) {
		return answer{"code": broker.Code, "name": broker.Message, "text": err.Error()}
	}
	return answer{"code": -1, "name": "franz-go", "text": err.Error()}
}

var commands = map[string]func(arguments) (any, error){
	"hello":         hello,
	"access":        func(a arguments) (any, error) { return useAccess(a.access) },
	"produce":       produce,
	"fetch":         fetch,
	"list_topics":   listTopics,
	"load_start":    startLoad,
	"load_status":   func(arguments) (any, error) { return currentLoad.status(), nil },
	"load_stop":     stopLoad,
	"member_start":  startMember,
	"member_status": func(arguments) (any, error) { return currentMember.status(), nil },
	"member_commit": commitOfMember,
	"member_stop":   stopMember,
	"txn_start":     startTransactional,
	"txn_begin":     func(arguments) (any, error) { return nil, transactional.BeginTransaction() },
	"txn_send": func(a arguments) (any, error) {
		return sendAll(context.Background(), transactional, a.Records), nil
	},
	"txn_commit": end(kgo.TryCommit),
	"txn_abort":  end(kgo.TryAbort),
	"txn_close": func(arguments) (any, error) {
		transactional.Close()
		return nil, nil
	},
}

func reply(line []byte) answer {
	var a arguments
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{"error": describe(err)}
	}
	command, isKnown := commands[a.Command]
	if !isKnown {
		return answer{"unsupported": "the driver of franz-go has no " + a.Command}
	}
	result, err := command(a)
	if err != nil {
		return answer{"error": describe(err)}
	}
	return answer{"answer": result}
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 64<<20)
	for input.Scan() {
		line, _ := json.Marshal(reply(input.Bytes()))
		fmt.Println(string(line))
	}
}
