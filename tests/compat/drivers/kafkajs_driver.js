// kafkajs, as an application uses it; the protocol is that of stdio.py.
//
// kafkajs has no consumer without a group: records are read through the Fetch and ListOffsets of its own
// connections (what its consumer is built on).
'use strict'

const fs = require('fs')
const path = require('path')
const readline = require('readline')

const modules = process.env.NODE_MODULES
const load = name => require(path.join(modules, name))
const kafkajs = load('kafkajs')
const { version } = load('kafkajs/package.json')
const Batch = load('kafkajs/src/consumer/batch')
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = kafkajs
const lz4 = load('lz4js')
const xxhash = load('lz4js/xxh32.js')

// How long the broker may take to change topics; by itself kafkajs gives it 5 s, and asks anew for what is done then.
const TIMEOUT_MS = 25000

class Unsupported extends Error {}

const bytes = text => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
const text = buffer => (buffer === null || buffer === undefined ? null : Buffer.from(buffer).toString('base64'))

// -- codecs ------------------------------------------------------------------------------------------------

CompressionCodecs[CompressionTypes.Snappy] = load('kafkajs-snappy')
// lz4js leaves the "independent blocks" flag out, which Java wants, although a single block depends on nothing.
const markIndependent = frame => {
  frame[4] |= 0x20
  frame[6] = (xxhash.hash(0, frame, 4, 2) >> 8) & 0xff
  return frame
}
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => markIndependent(Buffer.from(lz4.compress(encoder.buffer))),
  decompress: async buffer => Buffer.from(lz4.decompress(buffer)),
})
let zstd = null
const withZstd = () =>
  (zstd ||= new Promise(resolve => load('zstd-codec').ZstdCodec.run(z => resolve(new z.Streaming()))))
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await withZstd()).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await withZstd()).decompress(buffer)),
})
const CODECS = { none: 'None', gzip: 'GZIP', snappy: 'Snappy', lz4: 'LZ4', zstd: 'ZSTD' }

// -- connections -------------------------------------------------------------------------------------------

let security = {}

const client = (bootstrap, config = {}) =>
  new Kafka({ brokers: bootstrap.split(','), clientId: 'kafkajs', logLevel: logLevel.NOTHING, ...security, ...config })

// The command `access` of access.py.
const access = ({ ca_file = null, mechanism = null, user, password, token = null, certificate = null }) => {
  // By itself it authenticates again before each request of the last ten seconds; brokers refuse that within a second.
  security = { reauthenticationThreshold: 300 }
  if (ca_file) security.ssl = { ca: [fs.readFileSync(ca_file)] }
  if (certificate) security.ssl.key = security.ssl.cert = fs.readFileSync(certificate)
  if (token) security.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) }
  else if (mechanism) security.sasl = { mechanism: mechanism.toLowerCase(), username: user, password }
  return null
}

const withAdmin = async (bootstrap, work, config = {}) => {
  const admin = client(bootstrap, config).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

const withLeader = async (bootstrap, topic, partition, work) => {
  const kafka = client(bootstrap)
  const createCluster = Object.getOwnPropertySymbols(kafka).find(s => s.description === 'private:Kafka:createCluster')
  const cluster = kafka[createCluster]({ metadataMaxAge: 300000, allowAutoTopicCreation: false })
  await cluster.connect()
  try {
    await cluster.addTargetTopic(topic)
    const [leader] = Object.keys(cluster.findLeaderForPartitions(topic, [partition]))
    return await work(await cluster.findBroker({ nodeId: leader }))
  } finally {
    await cluster.disconnect()
  }
}

const LEVELS = { null: 0, read_uncommitted: 0, read_committed: 1 }

// What kafkajs' consumer asks for; its admin client asks for no isolation level.
const offsetsUnder = async (bootstrap, topic, partitions, at, isolation) => {
  const timestamp = { earliest: -2, latest: -1 }[at]
  const found = {}
  for (const partition of partitions) {
    await withLeader(bootstrap, topic, partition, async broker => {
      const topics = [{ topic, partitions: [{ partition, timestamp }] }]
      const { responses } = await broker.listOffsets({ isolationLevel: LEVELS[isolation], topics })
      found[partition] = Number(responses[0].partitions[0].offset)
    })
  }
  return found
}

// -- commands ----------------------------------------------------------------------------------------------

const commands = {
  hello: () => ({ client: 'kafkajs', version }),

  access,

  async produce({
    bootstrap,
    records,
    acks = 'all',
    compression = 'none',
    idempotent = false,
    timeout_s = 45,
  }) {
    const retry = { maxRetryTime: timeout_s * 1000 }
    const producer = client(bootstrap, { retry }).producer({
      idempotent,
      maxInFlightRequests: idempotent ? 5 : null,
    })
    await producer.connect()
    const results = records.map(() => ({}))
    try {
      // One send for each run of records of one topic: kafkajs keeps no order between sends.
      let position = 0
      while (position < records.length) {
        const { topic } = records[position]
        let end = position
        while (end < records.length && records[end].topic === topic) end += 1
        const run = records.slice(position, end)
        try {
          const answers = await producer.send({
            topic,
            acks: acks === 'all' ? -1 : Number(acks),
            compression: CompressionTypes[CODECS[compression]],
            messages: run.map(message),
          })
          const offsets = new Map(answers.map(a => [a.partition, BigInt(a.baseOffset ?? a.offset ?? -1)]))
          run.forEach((record, index) => {
            if (record.partition === null || record.partition === undefined) return
            const offset = offsets.get(record.partition)
            results[position + index].partition = record.partition
            if (offset === undefined || offset < 0n) return
            results[position + index].offset = Number(offset)
            offsets.set(record.partition, offset + 1n)
          })
        } catch (error) {
          run.forEach((_, index) => (results[position + index] = { error: describe(error) }))
        }
        position = end
      }
    } finally {
      await producer.disconnect()
    }
    return results
  },

  async fetch({ bootstrap, topic, partition, offset, count, timeout_s = 45, max_bytes = null, isolation = null }) {
    return withLeader(bootstrap, topic, partition, async broker => {
      const found = []
      const deadline = Date.now() + timeout_s * 1000
      let next = BigInt(offset)
      while (found.length < count && Date.now() < deadline) {
        const maxBytes = max_bytes ?? 1048576
        const { responses } = await broker.fetch({
          maxWaitTime: 200,
          minBytes: 1,
          maxBytes: 10485760,
          isolationLevel: LEVELS[isolation],
          topics: [{ topic, partitions: [{ partition, fetchOffset: String(next), maxBytes }] }],
        })
        for (const { partitions } of responses) {
          for (const data of partitions) {
            // As its consumer does: a batch comes whole, and aborted and control records are left out.
            const batch = new Batch(topic, String(next), data)
            found.push(...batch.messages.map(record))
            for (const m of batch.messagesWithinOffset) next = BigInt(m.offset) + 1n
          }
        }
      }
      return found.slice(0, count)
    })
  },

  async offsets({ bootstrap, topic, partitions, at, isolation = null }) {
    if (isolation !== null) return offsetsUnder(bootstrap, topic, partitions, at, isolation)
    return withAdmin(bootstrap, async admin => {
      const asked = new Set(partitions)
      const found = {}
      if (typeof at === 'number') {
        for (const p of await admin.fetchTopicOffsetsByTimestamp(topic, at)) {
          if (asked.has(p.partition)) found[p.partition] = Number(p.offset)
        }
        return found
      }
      for (const p of await admin.fetchTopicOffsets(topic)) {
        if (asked.has(p.partition)) found[p.partition] = Number(at === 'earliest' ? p.low : p.high)
      }
      return found
    })
  },

  async create_topic({
    bootstrap,
    topic,
    partitions = 1,
    replicas = 1,
    configs = {},
    assignment = null,
    validate_only = false,
  }) {
    const one = { topic, configEntries: Object.entries(configs ?? {}).map(([name, value]) => ({ name, value })) }
    if (assignment) {
      one.replicaAssignment = assignment.map((replicas, partition) => ({ partition, replicas }))
      Object.assign(one, { numPartitions: -1, replicationFactor: -1 })
    } else {
      Object.assign(one, { numPartitions: partitions, replicationFactor: replicas })
    }
    await withAdmin(bootstrap, async admin => {
      // Waiting for leaders is left out: kafkajs would ask for a topic that was only validated.
      const made = await admin.createTopics({
        validateOnly: validate_only,
        waitForLeaders: false,
        timeout: TIMEOUT_MS,
        topics: [one],
      })
      if (!made) throw Object.assign(new Error(`${topic} exists`), { type: 'TOPIC_ALREADY_EXISTS', code: 36 })
    })
    return null
  },

  async delete_topic({ bootstrap, topic }) {
    // It asks five times for a topic that is not there; by itself it waits ten seconds between them.
    const retry = { initialRetryTime: 20 }
    await withAdmin(bootstrap, admin => admin.deleteTopics({ topics: [topic], timeout: TIMEOUT_MS }), { retry })
    return null
  },

  list_topics: ({ bootstrap }) => withAdmin(bootstrap, admin => admin.listTopics()),

  describe_topic: ({ bootstrap, topic }) =>
    withAdmin(bootstrap, async admin => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      return topics[0].partitions
        .map(p => ({ partition: p.partitionId, leader: p.leader, replicas: p.replicas, isr: p.isr }))
        .sort((a, b) => a.partition - b.partition)
    }),

  describe_cluster: ({ bootstrap }) =>
    withAdmin(bootstrap, async admin => {
      const { controller, brokers } = await admin.describeCluster()
      return { controller, brokers: brokers.map(b => [b.nodeId, b.host, b.port]).sort((a, b) => a[0] - b[0]) }
    }),

  describe_configs: ({ bootstrap, topic }) =>
    withAdmin(bootstrap, async admin => {
      const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
      const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] })
      return Object.fromEntries(resources[0].configEntries.map(e => [e.configName, e.configValue]))
    }),

  async alter_configs({ bootstrap, topic, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }]
    await withAdmin(bootstrap, admin => admin.alterConfigs({ validateOnly: false, resources }))
    return null
  },

  async create_partitions({ bootstrap, topic, total }) {
    const topicPartitions = [{ topic, count: total }]
    await withAdmin(bootstrap, admin => admin.createPartitions({ topicPartitions, timeout: TIMEOUT_MS }))
    return null
  },

  async delete_records({ bootstrap, topic, partition, before }) {
    const partitions = [{ partition, offset: String(before) }]
    await withAdmin(bootstrap, async admin => {
      // kafkajs looks for the leaders among the topics that it was asked about before.
      await admin.fetchTopicOffsets(topic)
      await admin.deleteTopicRecords({ topic, partitions })
    })
    return before
  },

  async load_start({ bootstrap, topic, partitions, interval_ms, idempotent = null }) {
    const config = idempotent === null ? {} : { idempotent, maxInFlightRequests: idempotent ? 5 : null }
    const producer = client(bootstrap).producer(config)
    await producer.connect()
    current = new Load(producer, topic, partitions, interval_ms)
    return null
  },
  load_mark: ({ at_ns = null }) => current.mark(at_ns),
  load_status: () => current.status(),
  async load_stop({ path }) {
    await current.stop()
    fs.writeFileSync(path, JSON.stringify(current.acknowledged))
    return current.status()
  },
}

const message = ({ key = null, value = null, partition, headers, timestamp }) => {
  const made = { key: bytes(key), value: bytes(value) }
  if (partition !== null && partition !== undefined) made.partition = partition
  if (timestamp !== null && timestamp !== undefined) made.timestamp = String(timestamp)
  if (headers && headers.length) {
    made.headers = {}
    for (const [name, encoded] of headers) {
      if (encoded === null) throw new Unsupported('kafkajs cannot write a header without a value')
      const earlier = made.headers[name]
      made.headers[name] = earlier === undefined ? bytes(encoded) : [].concat(earlier, bytes(encoded))
    }
  }
  return made
}

const record = m => ({
  offset: Number(m.offset),
  key: text(m.key),
  value: text(m.value),
  headers: Object.entries(m.headers ?? {}).flatMap(([name, value]) => [].concat(value).map(v => [name, text(v)])),
  timestamp: Number(m.timestamp),
  timestamp_type: m.batchContext?.timestampType === 1 ? 'log_append' : 'create',
})

// -- a load that goes on until it is stopped ---------------------------------------------------------------

const now = () => process.hrtime.bigint()

// Sends to every partition in turn, one round an interval; one send for each record, as kafkajs has no batching.
class Load {
  constructor(producer, topic, partitions, intervalMs) {
    Object.assign(this, { producer, topic, partitions, sent: 0, number: 0, errors: [], acknowledged: {} })
    this.pending = new Set()
    this.mark(null)
    this.timer = setInterval(() => this.round(), intervalMs)
  }

  mark(atNs) {
    this.markedAt = atNs === null ? now() : BigInt(atNs)
    this.slowest = {}
    this.first = {}
    return null
  }

  round() {
    for (let partition = 0; partition < this.partitions; partition += 1) {
      this.send(partition, this.number)
    }
    this.number += 1
  }

  send(partition, number) {
    const sentAt = now()
    this.sent += 1
    const messages = [{ partition, value: `${partition}:${number}` }]
    const sending = this.producer
      .send({ topic: this.topic, acks: -1, messages })
      .then(([answer]) => this.acknowledge(partition, number, Number(answer.baseOffset), sentAt))
      .catch(error => this.errors.push(String(error)))
      .finally(() => this.pending.delete(sending))
    this.pending.add(sending)
  }

  acknowledge(partition, number, offset, sentAt) {
    ;(this.acknowledged[partition] ||= []).push([number, offset])
    const at = now()
    this.slowest[partition] = Math.max(this.slowest[partition] ?? 0, Number(at - sentAt) / 1e6)
    if (sentAt > this.markedAt && this.first[partition] === undefined) {
      this.first[partition] = Number(at - this.markedAt) / 1e6
    }
  }

  status() {
    return {
      sent: this.sent,
      acknowledged: Object.values(this.acknowledged).reduce((sum, list) => sum + list.length, 0),
      errors: this.errors.slice(0, 20),
      failed: this.errors.length,
      slowest_ms: this.slowest,
      first_ms: this.first,
    }
  }

  async stop() {
    clearInterval(this.timer)
    await Promise.all([...this.pending])
    await this.producer.disconnect()
  }
}

let current = null

Object.assign(commands, require('./kafkajs_groups.js')({ client, withAdmin, Unsupported }))
Object.assign(commands, require('./kafkajs_transactions.js')({ client, message, describe: e => describe(e), Unsupported }))

// -- lines in, lines out -----------------------------------------------------------------------------------

const describe = error => {
  // The broker's word may be wrapped several times.
  let inner = error
  for (let next = error; next; next = next.cause ?? next.errors?.[0] ?? (next.partitions ?? next.groups)?.[0]?.error) {
    if (next.type) inner = next
  }
  return { code: inner.code ?? -1, name: inner.type ?? inner.name, text: inner.message }
}

const answer = async line => {
  const { command, ...given } = JSON.parse(line)
  try {
    return { answer: (await commands[command](given)) ?? null }
  } catch (error) {
    return error instanceof Unsupported ? { unsupported: error.message } : { error: describe(error) }
  }
}

let last = Promise.resolve()
const input = readline.createInterface({ input: process.stdin })
input.on('line', line => {
  last = last.then(() => answer(line)).then(reply => process.stdout.write(`${JSON.stringify(reply)}\n`))
})
input.on('close', () => last.then(() => process.exit(0)))
