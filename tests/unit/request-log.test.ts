// The log of a request.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import pino from 'pino'
import { createRequestLog } from '../../server/platform/http/request-log.ts'

test('each line has the id of its request, at the level of its route; a request without lines makes no logger', (t) => {
  const lines: { level: number; request_id: string; trace_id?: string; msg: string }[] = []
  const parent = pino({ level: 'info' }, { write: (line) => void lines.push(JSON.parse(line)) })
  const { mock } = t.mock.method(parent, 'child')
  createRequestLog(parent, { request_id: 'req_silent' }, {})
  assert.equal(mock.callCount(), 0)
  const log = createRequestLog(parent, { request_id: 'req_a' }, { level: 'warn' })
  log.info('too low')
  log.error({ err: new Error('broken') }, 'a request failed')
  assert.equal(mock.callCount(), 1)
  log.child({ trace_id: 't' }).warn('within a trace')
  assert.deepEqual(
    lines.map(({ level, request_id, trace_id, msg }) => ({ level, request_id, trace_id, msg })),
    [
      { level: 50, request_id: 'req_a', trace_id: undefined, msg: 'a request failed' },
      { level: 40, request_id: 'req_a', trace_id: 't', msg: 'within a trace' },
    ],
  )
  assert.equal(log.level, 'warn')
})
