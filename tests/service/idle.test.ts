// A service that nobody asks for anything takes next to nothing: it looks, and writes nothing.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { isPostgres } from '../../server/platform/db/dialect.ts'
import { appOfTests } from '../support/service.ts'

const app = appOfTests()

test('an idle service takes no turn to write: for no kind of work, webhook, quota or row of usage', async (t) => {
  await app.started
  if (isPostgres(app.db)) return t.skip('counts what the thread gets that writes SQLite')
  const statements: string[] = []
  const post = Worker.prototype.postMessage
  t.mock.method(Worker.prototype, 'postMessage', function (this: Worker, message: { kind?: string; sql?: string }) {
    if (message.kind === 'run') statements.push(message.sql!)
    post.call(this, message)
  })
  // What was begun by the start has ended by then.
  for (let before = -1; before !== statements.length; await sleep(500)) before = statements.length
  statements.length = 0
  await sleep(2500)
  // Each second would be two or three for each; what is looked at every five or fifteen seconds may fall into it.
  assert.ok(statements.length <= 4, statements.join('\n'))
})
