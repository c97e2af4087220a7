// Groups with kafkajs: a member, and what its admin client does to groups; commands of kafkajs_driver.js.
'use strict'

const HEARTBEAT_INTERVAL_MS = 500
const METADATA_MAX_AGE_MS = 300

class Member {
  constructor(consumer) {
    Object.assign(this, { consumer, assigned: [], taken: [], read: [], errors: [], next: new Map() })
    const { GROUP_JOIN, REBALANCING, CRASH } = consumer.events
    consumer.on(GROUP_JOIN, ({ payload }) => {
      this.assigned = Object.entries(payload.memberAssignment).flatMap(([topic, partitions]) =>
        partitions.map(partition => [topic, partition])
      )
    })
    consumer.on(REBALANCING, () => {
      this.taken.push(...this.assigned)
      this.assigned = []
    })
    consumer.on(CRASH, ({ payload }) => {
      if (!payload.restart) this.errors.push(String(payload.error))
    })
  }

  async start(topics, pattern, autoCommit) {
    await this.consumer.connect()
    await this.consumer.subscribe({ topics: pattern ? [new RegExp(`^${pattern}`)] : topics, fromBeginning: true })
    await this.consumer.run({
      autoCommit,
      eachMessage: async ({ topic, partition, message }) => {
        this.read.push([topic, partition, Number(message.offset)])
        this.next.set(`${topic} ${partition}`, { topic, partition, offset: String(BigInt(message.offset) + 1n) })
      },
    })
  }

  status() {
    const { assigned, taken, read, errors } = this
    return { assigned: [...assigned].sort(), taken, read, errors }
  }
}

let current = null

module.exports = ({ client, withAdmin, Unsupported }) => ({
  async member_start({
    bootstrap,
    group,
    topics = [],
    pattern = null,
    strategy = 'range',
    instance = null,
    auto_commit = false,
    session_ms = 6000,
  }) {
    if (pattern) throw new Unsupported('kafkajs resolves a pattern once')
    if (strategy === 'cooperative-sticky') throw new Unsupported('kafkajs has no cooperative rebalancing')
    if (instance !== null) throw new Unsupported('kafkajs has no static members')
    // When its coordinator is gone it tries that again five times, each after a longer time, and starts anew.
    const consumer = client(bootstrap, { retry: { initialRetryTime: 50 } }).consumer({
      groupId: group,
      sessionTimeout: session_ms,
      heartbeatInterval: HEARTBEAT_INTERVAL_MS,
      metadataMaxAge: METADATA_MAX_AGE_MS,
      maxWaitTimeInMs: 200,
    })
    current = new Member(consumer)
    await current.start(topics, pattern, auto_commit)
    return null
  },
  member_status: () => current.status(),
  async member_commit() {
    // There is one function, whose promise an application awaits or not.
    await current.consumer.commitOffsets([...current.next.values()])
    return null
  },
  member_pid: () => process.pid,
  async member_stop() {
    const member = current
    current = null
    await member.consumer.disconnect()
    return member.status()
  },

  list_groups: ({ bootstrap }) =>
    withAdmin(bootstrap, async admin => (await admin.listGroups()).groups.map(g => g.groupId)),

  describe_group: ({ bootstrap, group }) =>
    withAdmin(bootstrap, async admin => {
      const [found] = (await admin.describeGroups([group])).groups
      return { state: found.state, members: found.members.length }
    }),

  async delete_group({ bootstrap, group }) {
    await withAdmin(bootstrap, admin => admin.deleteGroups([group]))
    return null
  },

  group_offsets: ({ bootstrap, group, topic }) =>
    withAdmin(bootstrap, async admin => {
      const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      const committed = found.partitions.filter(p => p.offset !== '-1')
      return Object.fromEntries(committed.map(p => [p.partition, Number(p.offset)]))
    }),

  async set_group_offsets({ bootstrap, group, topic, offsets }) {
    const partitions = Object.entries(offsets).map(([p, offset]) => ({ partition: Number(p), offset: String(offset) }))
    await withAdmin(bootstrap, admin => admin.setOffsets({ groupId: group, topic, partitions }))
    return null
  },

  delete_group_offsets: () => {
    throw new Unsupported('kafkajs cannot delete offsets')
  },
})
