// A transactional producer with kafkajs: commands of kafkajs_driver.js.
'use strict'

module.exports = ({ client, message, describe, Unsupported }) => {
  let producer = null
  let transaction = null

  return {
    async txn_start({ bootstrap, transactional_id, timeout_ms = 60000 }) {
      producer = client(bootstrap).producer({
        transactionalId: transactional_id,
        transactionTimeout: timeout_ms,
        maxInFlightRequests: 1,
        idempotent: true,
      })
      return null
    },

    async txn_begin() {
      await producer.connect()
      transaction = await producer.transaction()
      return null
    },

    // One send for each topic.
    async txn_send({ records }) {
      const results = records.map(() => ({}))
      for (const topic of new Set(records.map(one => one.topic))) {
        const indexes = [...records.keys()].filter(index => records[index].topic === topic)
        try {
          await transaction.send({ topic, acks: -1, messages: indexes.map(index => message(records[index])) })
        } catch (error) {
          indexes.forEach(index => (results[index] = { error: describe(error) }))
        }
      }
      return results
    },

    async txn_offsets({ group, topic, offsets }) {
      const partitions = Object.entries(offsets).map(([partition, offset]) => ({
        partition: Number(partition),
        offset: String(offset),
      }))
      await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic, partitions }] })
      return null
    },

    member_keep() {
      throw new Unsupported('the producer of kafkajs takes no generation of a member')
    },

    async txn_commit() {
      await transaction.commit()
      return []
    },

    async txn_abort() {
      await transaction.abort()
      return null
    },

    async txn_close() {
      if (producer) await producer.disconnect()
      producer = transaction = null
      return null
    },
  }
}
